"""What goes wrong in the protocol itself: each error names the check that failed."""

from typing import Literal

from hexad.core.errors import HexadError

Check = Literal[
    "envelope",
    "signature",
    "recipient",
    "session",
    "config",
    "round",
    "roster",
    "duplicate",
    "length",
    "point",
    "scalar",
    "participants",
    "threshold",
    "capacity",
    "model",
    "training",
    "epoch",
    "range",
    "commitments",
    "opening",
]


def printable(text: str) -> str:
    """A text from elsewhere as one line of up to 500 characters that a terminal may be shown."""
    return "".join(letter if letter.isprintable() else "?" for letter in text.strip()[:500])


class ProtocolError(HexadError):
    """A message or a request that the protocol refuses; nothing was taken from it.

    Attributes:
        check: which check refused it.
    """

    def __init__(self, check: Check, message: str) -> None:
        super().__init__(message)
        self.check: Check = check

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        """Pickled with both arguments, as a worker's error is."""
        return type(self), (self.check, str(self))


class VerificationError(ProtocolError):
    """The two servers' replies do not prove a sum: the client keeps its model and uses neither of them."""
