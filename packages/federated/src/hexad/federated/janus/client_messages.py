"""A client's message as a server takes it apart, and what it adds to the server's sums."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt

from hexad.federated.janus.client import word_type
from hexad.federated.janus.config import JanusConfig
from hexad.federated.janus.envelopes import Header
from hexad.federated.janus.errors import ProtocolError
from hexad.federated.janus.groups import Group, scalar_from_bytes, scalar_to_bytes
from hexad.federated.janus.masks import SEED_SIZE, expand, scalar_pad

KINDS = ("masked", "seed")
"""What the messages to S_0 and S_1 are called."""


class Part(NamedTuple):
    """What a client's message adds to a server's sums.

    Attributes:
        header: of the message.
        words: of S_0 the masked numbers, of S_1 the seed of the pad.
        scalar: of S_0 the padded randomness, of S_1 0.
        commitment: to the update.
    """

    header: Header
    words: bytes | memoryview
    scalar: int
    commitment: bytes


def read_part(header: Header, payload: bytes, role: int, config: JanusConfig, group: Group) -> Part:
    """The payload of a message to S_0 (role 0) or S_1 (role 1), taken apart.

    Raises:
        ProtocolError: check `"length"`, `"point"` or `"scalar"`: it is malformed.
    """
    size, word = group.element_size, word_type(config).itemsize
    whole = (config.dim * word + 32 if role == 0 else SEED_SIZE) + size
    if len(payload) != whole:
        raise ProtocolError("length", f"the payload of {header.sender} has {len(payload)} bytes, not {whole}")
    commitment = group.decode(payload[-size:])
    if role == 1:
        return Part(header, payload[:SEED_SIZE], 0, commitment)
    scalar = scalar_from_bytes(payload[-32 - size : -size], group.order)
    return Part(header, memoryview(payload)[: -32 - size], scalar, commitment)


class Contribution(NamedTuple):
    """What one client, or all of them, add to a server's sums."""

    words: UInt[np.ndarray, " dim"]
    scalar: int
    commitment: bytes


def contribution(part: Part, role: int, config: JanusConfig, group: Group) -> Contribution:
    """S_0 adds what came; S_1 the pads that the seed gives."""
    if role == 0:
        return Contribution(np.frombuffer(part.words, word_type(config)), part.scalar, part.commitment)
    seed = bytes(part.words)
    pad = expand(seed, part.header.round, config.dim, config.modulus_bits)
    return Contribution(pad, scalar_pad(seed, group), part.commitment)


def add_up(contributions: Iterable[Contribution], config: JanusConfig, group: Group) -> bytes:
    """The sums as they are sent, of contributions that are taken one at a time."""
    total = np.zeros(config.dim, word_type(config))
    scalar, commitments = 0, []
    for words, part, commitment in contributions:
        total += words
        scalar += part
        commitments.append(commitment)
    return total.tobytes() + scalar_to_bytes(scalar % group.order) + group.combine(commitments)
