"""Who takes part: keys, the two servers, the roster of clients, and their files."""

import functools
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from hexad.core.errors import InputError
from hexad.core.files import writable_file, write_json
from hexad.core.validation import check_file
from hexad.federated.janus.config import check_name
from hexad.federated.janus.errors import ProtocolError
from hexad.federated.janus.private_files import write_private

SERVER_NAMES = ("s0", "s1")
_P, _Y8 = 2**255 - 19, 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD83D3D706A17C7
SMALL_ORDER = {y % 2**255 for y in (0, 1, _P - 1, _P, _P + 1, _Y8, _P - _Y8)}
"""The y of all points of Ed25519 of an order up to 8: with such a key, anybody could sign."""


@functools.cache
def _usable(sign: bytes, box: bytes) -> bool:
    """Whether signatures by the one prove anything and the other leads to secrets (RFC 7748, section 6.1)."""
    if box[-1] & 0x80:  # ignored by X25519, so that one key could be written in two ways
        return False
    try:
        X25519PrivateKey.from_private_bytes(bytes(32)).exchange(X25519PublicKey.from_public_bytes(box))
    except ValueError:
        return False
    return int.from_bytes(sign, "little") % 2**255 not in SMALL_ORDER


@dataclass(frozen=True)
class PublicKeys:
    """What others know of a party.

    Attributes:
        name: its name; the servers' are "s0" and "s1".
        sign: Ed25519 public key, 32 bytes.
        box: X25519 public key, 32 bytes.
    """

    name: str
    sign: bytes
    box: bytes

    def __post_init__(self) -> None:
        check_name("the name of a party", self.name)
        if len(self.sign) != 32 or len(self.box) != 32:
            raise InputError(
                f"the public keys of {self.name} have {len(self.sign)} and {len(self.box)} bytes; 32"
            )
        if not _usable(self.sign, self.box):
            raise InputError(
                f"a public key of {self.name} protects nothing (a point of small order), or its top bit is "
                "set; refuse it"
            )

    @property
    def verifier(self) -> Ed25519PublicKey:
        """The key that checks signatures."""
        return Ed25519PublicKey.from_public_bytes(self.sign)

    @property
    def sealer(self) -> X25519PublicKey:
        """The key that messages to the party are sealed to."""
        return X25519PublicKey.from_public_bytes(self.box)

    def to_json(self) -> dict[str, str]:
        """As it stands in a file."""
        return {"name": self.name, "sign": self.sign.hex(), "box": self.box.hex()}

    @classmethod
    def from_json(cls, value: Any, where: str = "the keys") -> "PublicKeys":
        """Read what `to_json` made.

        Raises:
            InputError: it is something else.
        """
        try:
            return cls(value["name"], bytes.fromhex(value["sign"]), bytes.fromhex(value["box"]))
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"{where} are no public keys of janus (name, sign, box); make them by `janus keys`"
            ) from None


class Keys:
    """A party's own private keys; they never leave it.

    Args:
        name: its name.
        sign: Ed25519 private key, 32 bytes.
        box: X25519 private key, 32 bytes.
    """

    def __init__(self, name: str, sign: bytes, box: bytes) -> None:
        if len(sign) != 32 or len(box) != 32:
            raise InputError(f"private keys of {name} have {len(sign)} and {len(box)} bytes; they have 32")
        self.sign = Ed25519PrivateKey.from_private_bytes(sign)
        self.box = X25519PrivateKey.from_private_bytes(box)
        self.public = PublicKeys(
            name, self.sign.public_key().public_bytes_raw(), self.box.public_key().public_bytes_raw()
        )

    @classmethod
    def generate(cls, name: str) -> "Keys":
        """New keys from the operating system's generator."""
        sign, box = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
        return cls(check_name("name", name), sign.private_bytes_raw(), box.private_bytes_raw())

    @property
    def name(self) -> str:
        """The party's name."""
        return self.public.name

    def __repr__(self) -> str:
        return f"Keys({self.name!r})"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the private keys to a file that its owner alone may read; never over another.

        Raises:
            InputError: there is such a file, or it cannot be written.
        """
        file = writable_file(path, "key file")
        if file.exists():
            raise InputError(f"key file {file} exists; keys are never overwritten, name another")
        content = {
            "janus": "private keys",
            "name": self.name,
            "sign": self.sign.private_bytes_raw().hex(),
            "box": self.box.private_bytes_raw().hex(),
        }
        write_private(file, (json.dumps(content, indent=2) + "\n").encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Keys":
        """Read a file of `save`.

        Raises:
            InputError: it is missing, something else, or open to others.
        """
        file = check_file(path, "key file")
        try:
            value = json.loads(file.read_text())
            if value["janus"] != "private keys":
                raise ValueError
            if os.name == "posix" and file.stat().st_mode & 0o077:
                raise InputError(f"key file {file} may be read by others; run: chmod 600 {file}")
            return cls(value["name"], bytes.fromhex(value["sign"]), bytes.fromhex(value["box"]))
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, RecursionError):
            raise InputError(f"{file} holds no private keys of janus; make them by `janus keys`") from None


@dataclass(frozen=True)
class Servers:
    """The public keys of both servers: all that a client must get to join.

    Raises:
        InputError: their names are not s0 and s1, or they share a key.
    """

    s0: PublicKeys
    s1: PublicKeys

    def __post_init__(self) -> None:
        if (self.s0.name, self.s1.name) != SERVER_NAMES:
            raise InputError(f"the servers are named {self.s0.name} and {self.s1.name}; name them s0 and s1")
        if self.s0.sign == self.s1.sign or self.s0.box == self.s1.box:
            raise InputError("both servers have the same keys; two parties that do not collude run them")

    def __getitem__(self, role: int) -> PublicKeys:
        return (self.s0, self.s1)[role]

    def check_other(self, party: PublicKeys) -> None:
        """Refuse a client (`InputError`) that is a server by its name or by a key."""
        for server in (self.s0, self.s1):
            if party.name == server.name or {party.sign, party.box} & {server.sign, server.box}:
                raise InputError(f"{party.name} has the name or a key of {server.name}; a client has its own")


class Roster(Mapping[str, PublicKeys]):
    """The clients that may take part, by name: the public-key infrastructure both servers know.

    Raises:
        InputError: two share a name or either key, or one is named like a server.
    """

    def __init__(self, clients: Iterable[PublicKeys] = ()) -> None:
        self._clients: dict[str, PublicKeys] = {}
        seen: dict[bytes, str] = {}
        for client in clients:
            if client.name in SERVER_NAMES or client.name in self._clients:
                raise InputError(f"two parties are named {client.name!r}; name one of them otherwise")
            for key in (client.sign, client.box):
                if key in seen:
                    raise InputError(f"{client.name} and {seen[key]} have the same key; each needs its own")
                seen[key] = client.name
            self._clients[client.name] = client

    def __getitem__(self, name: str) -> PublicKeys:
        return self._clients[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def member(self, name: str) -> PublicKeys:
        """A client's public keys.

        Raises:
            ProtocolError: check `"roster"`: it is not in the roster.
        """
        if name not in self._clients:
            raise ProtocolError("roster", f"{name!r} is not in the roster; let it join before it takes part")
        return self._clients[name]

    def joined(self, client: PublicKeys) -> "Roster":
        """The roster with one client more."""
        return Roster([*self.values(), client])

    def left(self, name: str) -> "Roster":
        """The roster without a client."""
        self.member(name)
        return Roster(keys for keys in self.values() if keys.name != name)

    @property
    def digest(self) -> str:
        """Changes with any member."""
        lines = sorted(f"{c.name} {c.sign.hex()} {c.box.hex()}" for c in self.values())
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def save_public(path: str | os.PathLike[str], keys: PublicKeys | Iterable[PublicKeys]) -> None:
    """Write public keys, of one party or of several, as JSON."""
    parties = [keys] if isinstance(keys, PublicKeys) else list(keys)
    write_json(writable_file(path, "file of public keys"), [party.to_json() for party in parties])


def load_public(paths: Iterable[str | os.PathLike[str]]) -> list[PublicKeys]:
    """Read public keys from files of `save_public`, or from all `*.public.json` of a folder.

    Raises:
        InputError: one is missing, something else, or holds private keys.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        files += sorted(path.glob("*.public.json")) if path.is_dir() else [check_file(path, "public keys")]
    found = []
    for file in files:
        try:
            value = json.loads(file.read_text())
        except (ValueError, RecursionError):
            raise InputError(f"{file} is no JSON; make public keys by `janus keys`") from None
        parties = value if isinstance(value, list) else [value]
        if any(isinstance(party, dict) and "janus" in party for party in parties):
            raise InputError(f"{file} holds private keys, which are given to nobody; name NAME.public.json")
        found += [PublicKeys.from_json(party, str(file)) for party in parties]
    return found


def split_parties(parties: Iterable[PublicKeys]) -> tuple[Servers, Roster]:
    """The two servers and the roster among public keys.

    Raises:
        InputError: a server is missing, or names or keys clash.
    """
    listed = list(parties)
    servers = {party.name: party for party in listed if party.name in SERVER_NAMES}
    for name in SERVER_NAMES:
        if name not in servers:
            raise InputError(f"the public keys of {name} are missing; name the file that holds them")
    clients = [party for party in listed if party.name not in SERVER_NAMES]
    if len(listed) != len(clients) + 2:
        raise InputError("a server's public keys are given twice; name each file once")
    both = Servers(servers["s0"], servers["s1"])
    for client in clients:
        both.check_other(client)
    return both, Roster(clients)
