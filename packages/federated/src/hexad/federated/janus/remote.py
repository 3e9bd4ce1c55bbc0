"""A client's round with two servers behind HTTP (`service.py`)."""

import time
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from hexad.core.errors import InputError
from hexad.federated.janus.client import JanusClient, Result
from hexad.federated.janus.errors import ProtocolError
from hexad.federated.janus.service import NOT_YET, READY, fetch


def take_part(
    client: JanusClient,
    addresses: tuple[str, str],
    update: Float[np.ndarray, " length"],
    weight: int,
    round_number: int,
    *,
    model: str = "",
    timeout: float = 600,
    poll_seconds: float = 0.3,
    tell: Callable[[float, str], None] = lambda fraction, note: None,
) -> Result:
    """Send an update to both servers, wait for the round's end, and verify.

    Args:
        client: of the session.
        addresses: of S_0 and S_1, such as "http://127.0.0.1:8700".
        update, weight, round_number, model: as in `JanusClient.protect`.
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
    messages = client.protect(update, weight, round_number, model)
    end = time.monotonic() + timeout

    def ask(role: int, path: str, body: bytes | None) -> bytes:
        while True:
            code, answer = fetch(addresses[role].rstrip("/") + path, body)
            if code == READY:
                return answer
            if code not in (0, NOT_YET, 502, 503, 504):
                reason = answer.decode(errors="replace").strip() or f"status {code}"
                raise ProtocolError("round", f"S_{role} refuses: {reason}")
            if time.monotonic() > end:
                what = "does not answer" if code == 0 else "has no sum yet"
                raise InputError(f"S_{role} at {addresses[role]} {what} after {timeout:g} s; try again later")
            time.sleep(poll_seconds)

    for role, message in enumerate(messages):
        tell(0.1 + 0.1 * role, f"sending to S_{role}")
        ask(role, "/message", message)
    replies = []
    for role in (0, 1):
        tell(0.3 + 0.3 * role, f"waiting for S_{role}")
        replies.append(ask(role, f"/reply/{round_number}/{client.keys.name}", None))
    tell(0.9, "verifying")
    return client.verify_and_unmask(replies[0], replies[1], round_number, model)
