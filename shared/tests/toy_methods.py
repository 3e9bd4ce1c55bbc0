"""Announced methods around the toy study."""

import typer

from hexad.core.methods import Method

app = typer.Typer()


@app.command()
def hello(name: str) -> None:
    """Greet."""
    print(f"hello {name}")


@app.command()
def bye() -> None:
    """Part."""


TOY = Method(
    "toy", "A toy", "Nobody 2026", "Two is more than a half.", ("small",), "toy:STUDY", "toy_methods:app"
)
BROKEN = Method("toy-broken", "A broken toy", "Nobody 2026", "It fails.", (), "toy:BROKEN")
BARE = Method("bare", "Metadata only", "Nobody 2026", "None.")
UNMET = Method("unmet", "Needs something", "Nobody 2026", "None.", (), "needs_something:STUDY")
