"""`hexad federated janus serve | take-part`: the servers as HTTP services, and a client's round with them."""

import json
from pathlib import Path
from typing import Annotated

import typer

from hexad.core.errors import InputError
from hexad.core.terminal import progress_bar
from hexad.core.validation import check_range
from hexad.federated.janus.command_options import (
    Json,
    KeyFile,
    Mean,
    Model,
    Own,
    Round,
    Session,
    State,
    Threads,
    Weight,
    load,
    open_folder,
    open_server,
    prepare,
    show_mean,
    stderr,
    tell_clipped,
)


def serve(
    session_file: Session,
    key_file: KeyFile,
    state: State,
    peer: Annotated[str, typer.Option(help="Address of the other server, http://HOST:PORT.")],
    port: Annotated[int, typer.Option(help="Port to listen at.")],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    clients: Annotated[
        int | None,
        typer.Option(help="End a round when so many clients were heard; default the whole roster."),
    ] = None,
    round_seconds: Annotated[float, typer.Option(help="Or so many seconds after its first message.")] = 60.0,
) -> None:
    """Run one of the two servers as an HTTP service until Ctrl-C; the keys say which.

    A round begins with a client's first message and needs nothing from you. Kill it when you like: started
    again with the same --state it goes on where it was, and never sums a round twice. Messages are sealed and
    signed, so plain HTTP gives nothing away but who takes part and when. Example:

        hexad federated janus serve -s session.json -k s0.key.json --state s0 --port 8700 \\
            --peer http://other.example:8701
    """
    from hexad.federated.janus.http_server import make_http
    from hexad.federated.janus.service import Service
    from hexad.federated.janus.service import serve as run

    loaded, own = load(session_file, key_file)
    check_range("--round-seconds", round_seconds, 0, low_open=True)
    if not peer.startswith(("http://", "https://")):
        raise InputError(f"{peer!r} is no address; write http://HOST:PORT")
    wanted = len(loaded.roster) if clients is None else clients
    if wanted < loaded.config.threshold:
        raise InputError(
            f"a round of {wanted} clients is below the threshold, {loaded.config.threshold}; raise --clients"
        )

    def tell(line: str) -> None:
        stderr.print(line, markup=False, soft_wrap=True)

    with open_server(loaded, own, state, key_file) as server:
        service = Service(server, session_file, peer, wanted, round_seconds, tell)
        http = make_http(service, host, port)
        tell(f"{own.name} of session {loaded.config.session!r} at http://{host}:{http.server_address[1]}")
        run(service, http)


def check_servers(addresses: tuple[str, str], round_number: int) -> None:
    """Refuse (`InputError`) addresses of other servers and a round that is not due, as far as they answer."""
    from hexad.federated.janus.http_server import READY, fetch

    for role, address in enumerate(addresses):
        if not address.startswith(("http://", "https://")):
            continue
        code, answer = fetch(f"{address.rstrip('/')}/status")
        try:
            status = json.loads(answer) if code == READY else {}
            found, last = status.get("server", f"s{role}"), int(status.get("round", round_number))
        except (ValueError, TypeError, AttributeError, RecursionError):
            continue
        if found != f"s{role}":
            raise InputError(f"the server at {address} is {found!r}, not s{role}; exchange --s0 and --s1")
        due = last if status.get("phase") == "open" else last + 1
        if status and round_number > due:
            raise InputError(f"{found} is at round {last} and takes round {due} next; name that by --round")


def take_part(
    update: Annotated[Path, typer.Argument(help="Your update: an .npz file of floating-point arrays.")],
    session_file: Session,
    key_file: KeyFile,
    round_number: Round,
    weight: Weight,
    s0: Annotated[str, typer.Option(help="Address of S_0, http://HOST:PORT.")],
    s1: Annotated[str, typer.Option(help="Address of S_1.")],
    out: Mean = Path("mean.npz"),
    model: Model = None,
    state: Own = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait in all.")] = 600.0,
    threads: Threads = 1,
    as_json: Json = False,
) -> None:
    """Take part in a round with two servers that `serve`: protect, send, wait, verify, write the mean.

    The mean has the names and shapes of the update. After Ctrl-C or a crash the same command goes on: what
    was masked is kept and sent again as it is. Example:

        hexad federated janus take-part update.npz -s session.json -k bank-a.key.json -r 1 -w 120 \\
            --s0 http://one.example:8700 --s1 http://other.example:8701
    """
    from hexad.core.files import writable_file
    from hexad.federated.janus import remote
    from hexad.federated.janus.client import JanusClient
    from hexad.federated.janus.command_files import digest_of, read_arrays, read_update, write_mean
    from hexad.federated.janus.config import check_round

    loaded, own = load(session_file, key_file)
    check_round(round_number)
    values, template, digest = read_update(update, loaded.config), read_arrays(update), digest_of(model)
    with (
        open_folder(loaded, own, key_file, state) as memory,
        progress_bar(stderr, "round", quiet=as_json) as tell,
    ):
        prepare(loaded.config, tell)
        client = JanusClient(own, loaded.servers, loaded.config, threads=threads)
        memory.memory.give_to(client)
        tag = memory.tag(digest, round_number)
        if memory.memory.round != round_number:  # before anything is masked, which cannot be undone
            check_servers((s0, s1), round_number)
        result = remote.take_part(
            client,
            (s0, s1),
            values,
            weight,
            round_number,
            model=tag,
            folder=memory,
            timeout=timeout,
            tell=tell,
        )
        tell_clipped(client, loaded.config)
        write_mean(writable_file(out, "mean"), result.mean, template)
        memory.accept(client, result, round_number)
    show_mean(result, out, round_number, as_json)
