"""The two steps of a server in `janus aggregate`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hexad.core.errors import InputError
from hexad.core.validation import check_file
from hexad.federated.janus.command_files import message_files, write_message
from hexad.federated.janus.errors import ProtocolError
from hexad.federated.janus.server import JanusServer


def take(
    server: JanusServer, paths: Sequence[Path], round_number: int, out: Path, *, keep_open: bool
) -> dict[str, Any]:
    """Take messages into the round, and write the server's list unless it is kept open.

    Returns:
        "taken" (all names so far), "refused" (lines) and "list" (a path, or None).

    Raises:
        InputError: messages were given and the list is written already.
        ProtocolError: the round was begun and left before.
    """
    files = message_files(paths, ("masked", "seed")[server.role])
    if round_number != server.round or server.phase == "open":
        server.begin(round_number)
    elif files:
        raise InputError(f"round {round_number} is {server.phase} and takes no more messages; leave them out")
    refused = []
    for path in files:
        message = path.read_bytes()
        try:
            server.submit(message)
        except ProtocolError as error:
            # The same command again after a crash brings the same files.
            if not (error.check == "duplicate" and server.holds(message)):
                refused.append(f"{path}: {error}")
    listed = None
    if not keep_open:
        listed = str(write_message(out, server.listing()))
    return {"round": round_number, "taken": server.heard(), "refused": refused, "list": listed}


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
