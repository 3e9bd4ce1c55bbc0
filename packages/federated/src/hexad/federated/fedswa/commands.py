"""`hexad federated fedswa`: simulate a federation, and write a Flower app to copy."""

import shutil
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from hexad.core.errors import InputError
from hexad.core.files import writable_folder
from hexad.core.terminal import print_json
from hexad.federated.fedswa.simulate_command import Json, simulate

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="FedSWA and FedMoSWA: federated averaging for clients whose data differ.",
)
stdout = Console(highlight=False)

app.command("simulate")(simulate)

PACKAGE = "fedmoswa_app"


@app.command("app")
def write_app(
    folder: Annotated[Path, typer.Argument(help="Folder to make; it must not exist, or be empty.")],
    as_json: Json = False,
) -> None:
    """Write a Flower app with FedMoSWA: model, data, client and server in four short files.

    `flwr run` runs it, on simulated or real clients; `task.py` is where your model and data go. Example:

        hexad federated fedswa app my-app

        flwr run my-app --stream --federation-config "num-supernodes=100"
    """
    if folder.exists() and (folder.is_file() or any(folder.iterdir())):
        raise InputError(f"{folder} is there already; name a new folder")
    writable_folder(folder, "the app's folder")
    package = folder / PACKAGE
    package.mkdir()
    written = []
    with as_file(files("hexad.federated.fedswa") / "app") as source:
        for path in sorted(source.iterdir()):
            if path.suffix in (".py", ".toml"):
                target = (folder if path.suffix == ".toml" else package) / path.name
                shutil.copyfile(path, target)
                written.append(target)
    report: dict[str, Any] = {"folder": str(folder), "files": [str(path) for path in written]}
    if as_json:
        print_json(report)
        return
    for path in written:
        stdout.print(str(path), markup=False, soft_wrap=True)
    stdout.print(
        f'Run it:  flwr run {folder} --stream --federation-config "num-supernodes=100"\n'
        f"Make it yours: the model and the data are in {package / 'task.py'}",
        markup=False,
        soft_wrap=True,
    )
