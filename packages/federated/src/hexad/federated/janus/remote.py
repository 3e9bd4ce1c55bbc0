"""A client's round with two servers behind HTTP (`service.py`)."""

import json
import time
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from hexad.core.errors import InputError
from hexad.federated.janus.client import JanusClient, Result
from hexad.federated.janus.client_memory import ClientFolder
from hexad.federated.janus.errors import ProtocolError, printable
from hexad.federated.janus.http_server import NOT_YET, READY, fetch, most_bytes

Ask = Callable[[int, str, bytes | None], bytes]


def take_part(
    client: JanusClient,
    addresses: tuple[str, str],
    update: Float[np.ndarray, " length"],
    weight: int,
    round_number: int,
    *,
    model: str = "",
    folder: ClientFolder | None = None,
    timeout: float = 600,
    poll_seconds: float = 0.3,
    tell: Callable[[float, str], None] = lambda fraction, note: None,
) -> Result:
    """Send an update to both servers, wait for the round's end, and verify.

    Args:
        client: of the session.
        addresses: of S_0 and S_1, such as "http://127.0.0.1:8700".
        update, weight, round_number, model: as in `JanusClient.protect`.
        folder: keeps what was masked, so that a second call goes on where the first was interrupted.
        timeout: seconds in all; a server that does not answer is asked again until then.
        poll_seconds: pause between questions.
        tell: called with what is going on.

    Raises:
        InputError: an address is none, or nobody answers there in time; see also `JanusClient.protect`.
        ProtocolError: a server refuses the message, the round has no sum, or the sum is not proven.
    """
    for address in addresses:
        if not address.startswith(("http://", "https://")):
            raise InputError(f"{address!r} is no address; write http://HOST:PORT")
    end, most = time.monotonic() + timeout, most_bytes(client.config)

    def request(role: int, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        # A second at least, so that a server that does answer is heard at the very end.
        return fetch(addresses[role].rstrip("/") + path, body, max(1.0, end - time.monotonic()), most)

    def ask(role: int, path: str, body: bytes | None = None) -> bytes:
        while True:
            code, answer = request(role, path, body)
            if code == READY:
                return answer
            if code not in (0, NOT_YET, 502, 503, 504):
                reason = printable(answer.decode(errors="replace")) or f"status {code}"
                raise ProtocolError("round", f"S_{role} refuses: {reason}")
            if time.monotonic() > end:
                what = "does not answer" if code == 0 else "has no sum yet"
                raise InputError(f"S_{role} at {addresses[role]} {what} after {timeout:g} s; try again later")
            time.sleep(poll_seconds)

    reply = f"/reply/{round_number}/{client.keys.name}"
    if folder is not None and folder.memory.round == round_number:
        # Masked before: a server that has the sum already takes no message any more.
        arrived = [request(role, reply)[0] == READY for role in (0, 1)]
    else:
        client.epochs = _epochs(client, ask)
        arrived = [False, False]
    mask = client.protect if folder is None else folder.masking(client)
    messages = mask(update, weight, round_number, model)
    for role, message in enumerate(messages):
        if not arrived[role]:
            tell(0.1 + 0.1 * role, f"sending to S_{role}")
            ask(role, "/message", message)
    replies = []
    for role in (0, 1):
        tell(0.3 + 0.3 * role, f"waiting for S_{role}")
        replies.append(ask(role, reply))
    tell(0.9, "verifying")
    return client.verify_and_unmask(replies[0], replies[1], round_number, model)


def _epochs(client: JanusClient, ask: Callable[[int, str], bytes]) -> tuple[str, str]:
    """The names of both servers' folders, asked where they are unknown: the message is good for those alone.

    A false one cannot harm: the server then refuses the message.
    """
    found = []
    for role, known in enumerate(client.epochs):
        if known:
            found.append(known)
            continue
        status = ask(role, "/status")
        try:
            epoch = json.loads(status)["epoch"]
        except (ValueError, KeyError, TypeError, RecursionError):
            epoch = None
        if not isinstance(epoch, str) or not 0 < len(epoch) <= 64:
            raise ProtocolError(
                "envelope", f"S_{role} answers /status with nonsense; is it a server of janus?"
            )
        found.append(epoch)
    return found[0], found[1]
