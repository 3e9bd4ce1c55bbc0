"""The command line: `hexad science-ml avgflow sample mols.smi -o out.sdf`, and training."""

import typer
from rich.console import Console

from hexad.science_ml.avgflow import training_commands

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="AvgFlow: 3D conformers of molecules by SO(3)-averaged flow matching, in one step or many.",
)
stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)

app.command()(training_commands.train)
app.command()(training_commands.reflow)
app.command()(training_commands.distill)
