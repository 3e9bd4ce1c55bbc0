"""What the commands show on a terminal."""

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table


def print_summary(console: Console, summary: dict[str, Any]) -> None:
    """Print the table of accuracies that `Evaluation.summary` gives."""
    accuracy = {(cell["distortion"], cell["level"]): cell["accuracy"] for cell in summary["cells"]}
    levels = sorted({level for _, level in accuracy if level > 0})
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", title=None)
    table.add_column("superclass accuracy")
    for heading in (*map(str, levels), "mean"):
        table.add_column(heading, justify="right")

    def shown(value: float | None) -> str:
        return "–" if value is None else f"{value:.3f}"

    for name, mean in summary["by_distortion"].items():
        row = [shown(accuracy.get((name, level))) for level in levels]
        table.add_row(name, *row, shown(mean))
    if levels:
        means = [shown(summary["by_level"][str(level)]) for level in levels]
        table.add_row("[bold]mean[/]", *means, f"[bold]{shown(summary['mean'])}[/]")
    if summary["clean"] is not None:
        table.add_row("clean", *[""] * len(levels), shown(summary["clean"]))
    console.print(table)
    if summary["missing"]:
        missing = summary["missing"]
        console.print(
            f"{len(missing)} of the benchmark's 30 cells are missing, so this mean is not the leaderboard's: "
            f"{', '.join(missing[:6])}{' ...' if len(missing) > 6 else ''}"
        )


@contextmanager
def progress_bar(console: Console, *, quiet: bool = False) -> Generator[Progress]:
    """A bar that is drawn on a terminal alone, and cleared at the end."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        yield bar


@contextmanager
def warnings_as_lines(console: Console) -> Generator[None]:
    """Show what the block warns of as one line each, when it ends."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        # A large photograph is meant; beyond twice this size Pillow raises.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield
    for warning in caught:
        console.print(f"warning: {warning.message}", style="yellow", markup=False, soft_wrap=True)
