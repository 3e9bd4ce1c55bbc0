"""What the commands of janus share: options, and how results are shown."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from hexad.core.terminal import print_json

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of text.")]
Session = Annotated[Path, typer.Option("--session", "-s", help="The session file.")]
KeyFile = Annotated[Path, typer.Option("--keys", "-k", help="Your own private keys.")]
Round = Annotated[int, typer.Option("--round", "-r", help="Number of the round, from 1.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder to write to.")]
Weight = Annotated[int, typer.Option("--weight", "-w", help="How much it counts, e.g. your examples.")]
Mean = Annotated[Path, typer.Option("--out", "-o", help="File (.npz) for the mean.")]
Own = Annotated[
    Path | None,
    typer.Option("--state", help="Your own folder, kept from round to round; default: beside your keys."),
]
State = Annotated[Path, typer.Option(help="The server's own folder, kept from round to round.")]
Model = Annotated[
    Path | None,
    typer.Option(help="The model (.npz) that updates are of: clients of other models are not summed."),
]
Threads = Annotated[int, typer.Option(help="Threads of the commitments.")]


def show(report: dict[str, Any], as_json: bool, *lines: str) -> None:
    """Print the report as JSON, or the lines."""
    if as_json:
        print_json(report)
        return
    for line in lines:
        stdout.print(line, markup=False, soft_wrap=True)


def load(session_file: Path, key_file: Path) -> Any:
    """The session and the party's own keys."""
    from hexad.federated.janus.keys import Keys
    from hexad.federated.janus.session_file import SessionFile

    return SessionFile.load(session_file), Keys.load(key_file)


def open_folder(loaded: Any, own: Any, key_file: Path, state: Path | None) -> Any:
    """The folder of a client of the session, which remembers its rounds.

    Raises:
        InputError: the keys are of no client of the session; the folder is in use, damaged or read-only.
    """
    from hexad.federated.janus.client_memory import ClientFolder
    from hexad.federated.janus.session_file import beside_keys

    loaded.check_client(own)
    return ClientFolder(state or beside_keys(key_file, loaded.config), loaded.config)


def open_server(loaded: Any, own: Any, state: Path, key_file: Path) -> Any:
    """The server whose keys these are.

    Raises:
        InputError: they are no server's.
    """
    from hexad.core.errors import InputError
    from hexad.federated.janus.keys import SERVER_NAMES
    from hexad.federated.janus.server import JanusServer
    from hexad.federated.janus.session_file import beside_keys

    if own.name not in SERVER_NAMES:
        raise InputError(f"{key_file} holds the keys of {own.name}; a server's are those of s0 or s1")
    role = 0 if own.name == "s0" else 1
    mark = beside_keys(key_file, loaded.config) / "mark.json"
    return JanusServer(role, own, loaded.servers, loaded.roster, loaded.config, state, mark)


def prepare(config: Any, tell: Any) -> None:
    """Make the generators, which takes a while the first time."""
    from hexad.federated.janus.generators import generators
    from hexad.federated.janus.groups import get_group

    generators(get_group(config.group), config.label, config.dim, tell)


def tell_clipped(client: Any, config: Any) -> None:
    """Warn where numbers of the update were clipped."""
    if client.clipped:
        stderr.print(
            f"{client.clipped} of {config.length} numbers clipped to {config.clip:g}; take a session with a "
            "larger clip",
            style="yellow",
            soft_wrap=True,
        )


def show_mean(result: Any, out: Path, round_number: int, as_json: bool) -> None:
    """Say what was verified."""
    report = {
        "mean": str(out),
        "round": round_number,
        "participants": result.participants,
        "weight": result.weight,
        "included": result.included,
    }
    own_part = "yours is among them" if result.included else "yours is not among them"
    show(
        report,
        as_json,
        f"{out}: verified mean of {result.participants} updates, total weight {result.weight}; {own_part}",
    )
