"""What all parties of a session agree on before its first round."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass

from hexad.core.errors import InputError
from hexad.core.validation import check_choice, check_count, check_range
from hexad.federated.janus.generators import LABEL
from hexad.federated.janus.groups import GROUPS, GroupName

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LAYOUT = re.compile(r"([0-9a-f]{32})?")
LAST_ROUND = 2**32 - 1
LONGEST = 2**31


def check_round(round_number: int) -> int:
    """Return the number of a round if it is a whole number in [1, 2^32), else raise `InputError`."""
    if check_count("round_number", round_number) > LAST_ROUND:
        raise InputError("round_number is 2^32 or more; count rounds from 1")
    return round_number


def check_name(what: str, name: str) -> str:
    """Return a name that may stand in a message and in a file's name, else raise `InputError`."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(f"{what} is {name!r}; write up to 64 letters, digits, '.', '_' and '-'")
    return name


@dataclass(frozen=True)
class JanusConfig:
    """Parameters of a session; two parties with unlike ones refuse each other's messages.

    Args:
        length: numbers in an update (l).
        clip: updates are clipped to [-clip, clip], coordinate by coordinate.
        bits: of a quantised number (b).
        max_weight: largest weight of a client (w_max), such as its number of examples.
        max_clients: most clients in a round (n_max).
        modulus_bits: masks are drawn from 2^64 or 2^32; 32 halves the bytes.
        threshold: fewest clients whose sum is released, at least 3.
        session: name of the session; messages of another are refused.
        group: "secp256k1" (fast) or "ristretto255" (constant time).
        label: public text from which the generators are hashed.
        layout: of updates that come as files, a digest of their arrays' names and shapes; "" is one array.

    Raises:
        InputError: a value is nonsense, or the sum of all clients could reach the modulus.
    """

    length: int
    clip: float = 1.0
    bits: int = 16
    max_weight: int = 100_000
    max_clients: int = 1000
    modulus_bits: int = 64
    threshold: int = 3
    session: str = "janus"
    group: GroupName = "secp256k1"
    label: str = LABEL
    layout: str = ""

    def __post_init__(self) -> None:
        if check_count("length", self.length) > LONGEST:
            raise InputError(f"length is {self.length}; an update has at most 2^31 numbers")
        # Far from the ends of float64, so that 2 clip / levels neither vanishes nor overflows.
        check_range("clip", self.clip, 1e-30, 1e30)
        object.__setattr__(self, "clip", float(self.clip))  # 1 and 1.0 are one session
        check_count("bits", self.bits)
        check_count("max_weight", self.max_weight)
        check_count("max_clients", self.max_clients)
        check_count("threshold", self.threshold, 3)
        check_name("session", self.session)
        check_choice("group", self.group, GROUPS)
        try:
            usable = bool(self.label.encode())
        except (AttributeError, UnicodeEncodeError):
            usable = False
        if not usable:
            raise InputError(f"label is {self.label!r}; give any text that UTF-8 can hold")
        if not isinstance(self.layout, str) or not LAYOUT.fullmatch(self.layout):
            raise InputError(f"layout is {self.layout!r}; it is what `janus session --like` writes, or empty")
        if type(self.modulus_bits) is not int or self.modulus_bits not in (32, 64):
            raise InputError(f"modulus_bits is {self.modulus_bits!r}; it must be 32 or 64")
        most = 24 if self.modulus_bits == 32 else 32
        if self.bits > most:
            raise InputError(f"bits is {self.bits}; with modulus_bits={self.modulus_bits} at most {most} fit")
        if self.threshold > self.max_clients:
            raise InputError(
                f"threshold is {self.threshold}, above max_clients, {self.max_clients}; lower it"
            )
        if self.largest_sum >= 1 << self.modulus_bits:
            raise InputError(
                f"max_clients * max_weight * (2^bits - 1) is {self.largest_sum}, not below "
                f"2^{self.modulus_bits}, so sums could wrap; lower one of them"
            )

    @property
    def levels(self) -> int:
        """The largest quantised number, 2^b - 1."""
        return (1 << self.bits) - 1

    @property
    def largest_sum(self) -> int:
        """What no coordinate of an honest sum exceeds."""
        return self.max_clients * self.max_weight * self.levels

    @property
    def dim(self) -> int:
        """Length of an encoded vector: the update and its weight."""
        return self.length + 1

    @property
    def digest(self) -> str:
        """128 bits in hexadecimal that stand in every message."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:32]
