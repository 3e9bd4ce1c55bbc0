"""What the commands of avgflow share: options, and checks of devices and of files to write."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from hexad.core.errors import InputError

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)

CheckpointOption = Annotated[
    str, typer.Option("--checkpoint", "-c", help="base (100 steps), reflow (2), distilled (1), or a file.")
]
StepsOption = Annotated[int | None, typer.Option(help="Solver steps; default by the checkpoint's kind.")]
SeedOption = Annotated[int, typer.Option(help="Same seed, same conformers.")]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...")]
PrecisionOption = Annotated[
    Literal["float32", "bfloat16"],
    typer.Option(help="Of matrix products; bfloat16 is faster on processors that multiply it."),
]
ThreadsOption = Annotated[
    int | None, typer.Option(help="Cores; default all for sampling, one for training.", min=1)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def set_threads(count: int | None) -> None:
    """Compute on so many cores; None leaves torch's choice."""
    import torch

    if count is not None:
        torch.set_num_threads(count)


def check_output(path: Path, suffixes: tuple[str, ...], source: Path | None = None) -> None:
    """Refuse a file to write that has another suffix, cannot be written, or is the one that is read."""
    from hexad.core.files import writable_folder

    if source is not None and source.exists() and path.exists() and path.samefile(source):
        raise InputError(f"output {path} is the file that is read; name another one")
    if path.suffix.lower() not in suffixes:
        raise InputError(f"output {path} must end in {' or '.join(suffixes)}")
    if path.is_dir():
        raise InputError(f"output {path} is a folder; name a file")
    if not path.parent.is_dir():
        raise InputError(f"folder {path.parent} of the output does not exist")
    writable_folder(path.parent)
