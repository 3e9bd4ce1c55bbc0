"""The two steps of a server in `janus aggregate`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hexad.core.errors import InputError
from hexad.core.validation import check_file
from hexad.federated.janus.command_files import message_files, write_message
from hexad.federated.janus.envelopes import read_header
from hexad.federated.janus.errors import ProtocolError
from hexad.federated.janus.server import JanusServer


def take(
    server: JanusServer, paths: Sequence[Path], round_number: int, out: Path, *, keep_open: bool
) -> dict[str, Any]:
    """Take messages into the round, and write the server's list unless it is kept open.

    Returns:
        "taken" (all names so far), "refused" (lines) and "list" (a path; None if it is kept open, or too few
        were heard).

    Raises:
        InputError: a round would be begun without a message of it; new messages were given and the list is
            written already.
        ProtocolError: the round was begun and left before.
    """
    files = message_files(paths, ("masked", "seed")[server.role])
    if round_number > server.round and not any(_round(path) == round_number for path in files):
        found = sorted({_round(path) for path in files})
        what = f"the messages given are of round {', '.join(map(str, found))}" if found else "none is given"
        raise InputError(f"no message of round {round_number}: {what}; check --round and the messages")
    if round_number != server.round or server.phase == "open":
        server.begin(round_number)
    elif not all(server.holds(path.read_bytes()) for path in files):
        raise InputError(f"round {round_number} is {server.phase} and takes no more messages; leave them out")
    refused = []
    for path in files if server.phase == "open" else ():
        message = path.read_bytes()
        try:
            server.submit(message)
        except ProtocolError as error:
            # The same command again after a crash brings the same files.
            if not (error.check == "duplicate" and server.holds(message)):
                refused.append(f"{path}: {error}")
    listed = None
    if not keep_open and (server.phase != "open" or len(server.heard()) >= server.config.threshold):
        listed = str(write_message(out, server.listing()))
    return {"round": round_number, "taken": server.heard(), "refused": refused, "list": listed}


def _round(path: Path) -> int:
    return read_header(path.read_bytes())[0].round


def answer(
    server: JanusServer, peer_list: Path, out: Path, tell: Callable[[float, str], None]
) -> dict[str, Any]:
    """Close the round with the other server's list, sum, and write a reply for each client of the roster.

    Raises:
        ProtocolError: see `JanusServer.close`.
    """
    server.close(check_file(peer_list, "peer list").read_bytes())
    if server.phase == "closed":
        server.aggregate(tell)
    replies = []
    for place, name in enumerate(server.roster):
        tell(place / len(server.roster), f"reply to {name}")
        replies.append(str(write_message(out, server.reply(name))))
    return {"participants": list(server.participants), "replies": replies}
