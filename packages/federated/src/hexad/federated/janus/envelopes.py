"""Messages: a header that all may read, and a signed payload that only the recipient can.

    janus2 {"kind": "masked", "session": ..., "round": 3, "sender": "a", "recipient": "s0", ...}\\n
    HPKE(recipient's key, info = the header's line, Ed25519 signature (64 bytes) || payload)

HPKE is RFC 9180 in base mode: X25519, HKDF-SHA256, ChaCha20-Poly1305. The sender signs the SHA-256 of the
header's line and the payload; so a message is good for one recipient, round and session alone, whoever
carries it. A server's list for the other server is signed and not sealed: it holds names and hashes. Version
2 has `training` and `epoch`, and 128 bits of the parameters' digest.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from hexad.core.errors import InputError
from hexad.federated.janus.config import NAME, JanusConfig
from hexad.federated.janus.errors import Check, ProtocolError
from hexad.federated.janus.keys import Keys, PublicKeys

MAGIC = b"janus2 "
SIGNED = b"hexad-janus-v2 signature\x00"
SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
MOST_HEADER = 4096
MOST_TEXT = 128
SIGNATURE = 64


@dataclass(frozen=True)
class Header:
    """What stands before a payload, in clear.

    Attributes:
        kind: "masked" (client to S_0), "seed" (client to S_1), "list" (server to server), "sum" (server to
            client), "vouch" (server to clients) or "model" (client to client).
        session, config: the session's name and the digest of its parameters.
        round: number of the round, from 1.
        sender, recipient: names.
        model: tag of the model that the update is of, or "".
        training: tag of the instructions by which it was trained, or "".
        epoch: names a server's folder: the recipient's, as far as a client knows it, or a sum's sender's.
        agreed: of a sum: digest of the participants.
        participants: of a sum: how many there are.
        included: of a sum: whether the recipient is one of them.
    """

    kind: str
    session: str
    config: str
    round: int
    sender: str
    recipient: str
    model: str = ""
    training: str = ""
    epoch: str = ""
    agreed: str = ""
    participants: int = 0
    included: bool = False

    def line(self) -> bytes:
        """As it is sent and signed."""
        return MAGIC + json.dumps(asdict(self), sort_keys=True).encode() + b"\n"


TYPES: dict[str, type] = {field.name: field.type for field in fields(Header)}  # ty: ignore[invalid-assignment]


def read_header(message: bytes) -> tuple[Header, bytes, bytes]:
    """The header of a message, its line, and what follows it.

    Raises:
        ProtocolError: check `"envelope"`: it is no message of Janus, or cut off.
    """
    try:
        if not isinstance(message, (bytes, bytearray)):
            raise TypeError
        end = message.find(b"\n", 0, MOST_HEADER)
        if not message.startswith(MAGIC) or end < 0:
            raise ValueError
        line = bytes(message[: end + 1])
        values: Any = json.loads(line[len(MAGIC) :])
        if set(values) != set(TYPES) or any(type(values[name]) is not kind for name, kind in TYPES.items()):
            raise ValueError
        # Names are printed, and become names of files; the rest may be printed.
        if not all(NAME.fullmatch(values[name]) for name in ("session", "sender", "recipient")):
            raise ValueError
        texts = [value for value in values.values() if isinstance(value, str)]
        if not all(text.isascii() and text.isprintable() and len(text) <= MOST_TEXT for text in texts):
            raise ValueError
        header = Header(**values)
    except (ValueError, TypeError, UnicodeDecodeError, RecursionError):
        raise ProtocolError(
            "envelope", "this is no message of janus, or a part of one; send it again"
        ) from None
    return header, line, bytes(message[end + 1 :])


def check_header(header: Header, config: JanusConfig, **wanted: str | int) -> None:
    """Refuse a header of another session, round, kind, sender or recipient.

    Raises:
        ProtocolError: the check is named after the field.
    """
    checks: dict[str, Check] = {"kind": "envelope", "sender": "recipient"}
    expected: dict[str, str | int] = {"session": config.session, "config": config.digest, **wanted}
    for name, value in expected.items():
        found = getattr(header, name)
        if found != value:
            raise ProtocolError(
                checks.get(name, name),  # ty: ignore[invalid-argument-type]
                f"a message of {header.sender} has the {name} {found!r}; {value!r} is due",
            )


def _signed(line: bytes, payload: bytes) -> bytes:
    digest = hashlib.sha256(line)
    digest.update(payload)
    return SIGNED + digest.digest()


def sign(header: Header, payload: bytes, sender: Keys) -> bytes:
    """A message that is signed and not sealed."""
    line = header.line()
    return line + sender.sign.sign(_signed(line, payload)) + payload


def seal(header: Header, payload: bytes, sender: Keys, recipient: PublicKeys) -> bytes:
    """A message that only the recipient can read.

    Raises:
        InputError: the header names another sender or recipient.
        ProtocolError: check `"roster"`: nothing can be sealed to the recipient's key.
    """
    if (header.sender, header.recipient) != (sender.name, recipient.name):
        raise InputError(
            f"a header from {header.sender} to {header.recipient} cannot carry a message from {sender.name} "
            f"to {recipient.name}"
        )
    line = header.line()
    plain = sender.sign.sign(_signed(line, payload)) + payload
    try:
        return line + SUITE.encrypt(plain, recipient.sealer, info=line)
    except ValueError:
        raise ProtocolError("roster", f"nothing can be sealed to the key of {recipient.name}") from None


def check_signature(line: bytes, signed: bytes, sender: PublicKeys) -> bytes:
    """The payload of a signature and payload.

    Raises:
        ProtocolError: check `"signature"`: the sender has not signed it.
    """
    signature, payload = signed[:SIGNATURE], signed[SIGNATURE:]
    try:
        sender.verifier.verify(signature, _signed(line, payload))
    except InvalidSignature:
        raise ProtocolError(
            "signature", f"{sender.name} has not signed this message; it is refused"
        ) from None
    return payload


def unseal(line: bytes, sealed: bytes, recipient: Keys) -> bytes:
    """Signature and payload of a sealed message.

    Raises:
        ProtocolError: check `"envelope"`: it is for another key, or was changed.
    """
    try:
        return SUITE.decrypt(sealed, recipient.box, info=line)
    except Exception:  # cryptography raises InvalidTag, and ValueError where it is too short
        raise ProtocolError(
            "envelope", f"a message to {recipient.name} does not open: it was changed, or is for another key"
        ) from None


def open_sealed(line: bytes, sealed: bytes, recipient: Keys, sender: PublicKeys) -> bytes:
    """The payload of a sealed message.

    Raises:
        ProtocolError: check `"envelope"`: it is for another key, or was changed; `"signature"`.
    """
    return check_signature(line, unseal(line, sealed, recipient), sender)
