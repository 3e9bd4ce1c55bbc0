"""A client: masks and commits to its update, and checks the sum that the servers prove.

client = JanusClient(keys, servers, config)
to_s0, to_s1 = client.protect(update, weight=120, round_number=1)
...
result = client.verify_and_unmask(from_s0, from_s1, round_number=1)
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt64

from hexad.core.errors import InputError
from hexad.federated.janus.config import JanusConfig, check_round
from hexad.federated.janus.envelopes import MOST_TEXT, Header, check_header, open_sealed, read_header, seal
from hexad.federated.janus.errors import Check, ProtocolError, VerificationError
from hexad.federated.janus.groups import get_group, scalar_from_bytes, scalar_to_bytes
from hexad.federated.janus.keys import Keys, Servers
from hexad.federated.janus.masks import expand, new_seed, random_scalar, scalar_pad
from hexad.federated.janus.pedersen import Pedersen
from hexad.federated.janus.quantizer import Quantizer
from hexad.federated.janus.tags import shared_secret


class Protected(NamedTuple):
    """The two messages of a client in a round."""

    to_s0: bytes
    to_s1: bytes


@dataclass(frozen=True)
class Result:
    """A sum that both servers prove.

    Attributes:
        mean: the weighted mean of the clipped updates, (length,).
        total: the exact sum of the encoded updates, (length + 1,); its last number is `weight`.
        weight: the sum of the weights.
        participants: how many clients are in it.
        included: whether this client is one of them.
        secret: 32 bytes that the clients that verify this sum share and neither server knows; see `tags`.
    """

    mean: Float[np.ndarray, " length"]
    total: UInt64[np.ndarray, " dim"]
    weight: int
    participants: int
    included: bool
    secret: bytes = field(repr=False)


class _Reply(NamedTuple):
    header: Header
    words: UInt64[np.ndarray, " dim"]
    scalar: int
    commitment: bytes


def model_digest(arrays: Iterable[np.ndarray]) -> str:
    """A digest of a model's arrays, their types, shapes and order."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def word_type(config: JanusConfig) -> np.dtype:
    """The little-endian type of a masked number."""
    return np.dtype(f"<u{config.modulus_bits // 8}")


class JanusClient:
    """One client of a session, over as many rounds as there are.

    Args:
        keys: its own.
        servers: the public keys of both.
        config: the session's parameters.
        threads: of the commitments, which take most of the time of long updates.
        rounding_seed: of the random rounding; drawn from the system where None. It is not a secret.

    Attributes:
        last_round: the last round that it masked an update for; it never does so for that or an earlier one
            again. Set it, from `client_memory`, in a client that restarts.
        epochs: names of S_0's and S_1's folders, "" until the first sum is verified: a server that lost its
            folder, and might sum a round again, is refused.
        clipped: how many numbers of the update that it masked last were clipped.

    Raises:
        InputError: it has the name or a key of a server.
    """

    def __init__(
        self,
        keys: Keys,
        servers: Servers,
        config: JanusConfig,
        *,
        threads: int = 1,
        rounding_seed: int | None = None,
    ) -> None:
        servers.check_other(keys.public)
        self.keys, self.servers, self.config = keys, servers, config
        self.last_round, self.epochs, self.clipped = 0, ("", ""), 0
        self.group = get_group(config.group)
        self.quantizer = Quantizer(config)
        self.pedersen = Pedersen(self.group, config.dim, config.label, threads)
        self._rng = np.random.default_rng(rounding_seed)

    def protect(
        self,
        update: Float[np.ndarray, " length"],
        weight: int,
        round_number: int,
        model: str = "",
        training: str = "",
    ) -> Protected:
        """Mask and commit to an update, with fresh randomness.

        Args:
            update: floats; clipped to [-clip, clip] and rounded.
            weight: in [1, max_weight].
            round_number: from 1, above all rounds before.
            model: `tags.model_tag` of the model that the update is of; clients of unlike ones are not summed.
            training: `tags.training_tag` of what it was told to do; clients of unlike ones are not summed.

        Raises:
            InputError: an update of another shape or type, or not finite; a weight or round out of range; a
                round that an update was masked for already.
        """
        if check_round(round_number) <= self.last_round:
            raise InputError(
                f"{self.keys.name} has masked an update for round {self.last_round} already; "
                "send that again, or take the next round"
            )
        encoded = self.quantizer.encode(update, weight, self._rng)
        sent = self.protect_encoded(encoded, round_number, model, training)
        self.last_round, self.clipped = round_number, self.count_clipped(update)
        return sent

    def count_clipped(self, update: Float[np.ndarray, " length"]) -> int:
        """How many numbers of an update lie beyond the session's clip."""
        return int(np.count_nonzero(np.abs(update) > self.config.clip))

    def protect_encoded(
        self, encoded: UInt64[np.ndarray, " dim"], round_number: int, model: str = "", training: str = ""
    ) -> Protected:
        """Mask and commit to whole numbers below 2^64, the last of them the weight, whatever the round."""
        config = self.config
        for what, tag in (("model", model), ("training", training)):
            plain = isinstance(tag, str) and tag.isascii() and tag.isprintable()
            if not plain or len(tag) > MOST_TEXT:
                raise InputError(f"{what} is no tag; give up to {MOST_TEXT} printable ASCII characters")
        r, seed = random_scalar(self.group), new_seed()
        commitment = self.pedersen.commit(encoded, r)
        masked = encoded.astype(word_type(config)) + expand(
            seed, round_number, config.dim, config.modulus_bits
        )
        rho = (r + scalar_pad(seed, self.group)) % self.group.order
        payloads = (masked.tobytes() + scalar_to_bytes(rho) + commitment, seed + commitment)
        sealed = []
        for role, (kind, payload) in enumerate(zip(("masked", "seed"), payloads, strict=True)):
            to = self.servers[role]
            header = Header(
                kind,
                config.session,
                config.digest,
                round_number,
                self.keys.name,
                to.name,
                model,
                training,
                self.epochs[role],
            )
            sealed.append(seal(header, payload, self.keys, to))
        return Protected(*sealed)

    def _read(self, role: int, message: bytes, round_number: int) -> _Reply:
        config, server = self.config, self.servers[role]
        header, line, sealed = read_header(message)
        check_header(
            header, config, kind="sum", round=round_number, recipient=self.keys.name, sender=server.name
        )
        payload = open_sealed(line, sealed, self.keys, server)
        word, size = word_type(config), self.group.element_size
        if len(payload) != config.dim * word.itemsize + 32 + size:
            raise ProtocolError("length", f"the sum of {server.name} is cut off or too long; it is refused")
        if not header.epoch or self.epochs[role] not in ("", header.epoch):
            raise ProtocolError(
                "epoch",
                f"{server.name} has lost or replaced its folder and may sum rounds twice; end the session",
            )
        body, scalar, commitment = payload[: -32 - size], payload[-32 - size : -size], payload[-size:]
        return _Reply(
            header,
            np.frombuffer(body, word),
            scalar_from_bytes(scalar, self.group.order),
            self.group.decode(commitment),
        )

    def verify_and_unmask(
        self, from_s0: bytes, from_s1: bytes, round_number: int, model: str = "", training: str = ""
    ) -> Result:
        """Check both servers' replies against each other and take the sum from them.

        Args:
            from_s0: the reply of S_0.
            from_s1: the reply of S_1.
            round_number: the round that is due; a reply of another is refused.
            model: tag of the client's own model, as in `protect`.
            training: tag of what it was told to do; of no account where it is not in the sum.

        Raises:
            ProtocolError: a reply is not what it should be: changed, of another round, sender or session.
            VerificationError: the replies do not prove a sum; its `check` says which check failed.
        """
        check_round(round_number)
        first, second = self._read(0, from_s0, round_number), self._read(1, from_s1, round_number)
        result = self._accept(first, second, model, training)
        self._check_range(result)
        self.epochs = (first.header.epoch, second.header.epoch)
        return result

    def _accept(self, first: _Reply, second: _Reply, model: str, training: str) -> Result:
        self._compare(first.header, second.header, model, training)
        if first.commitment != second.commitment:
            raise _fails("commitments", "the servers have unlike sums of commitments")
        total = (first.words - second.words).astype(np.uint64)
        randomness = (first.scalar - second.scalar) % self.group.order
        if not self.pedersen.open(first.commitment, total, randomness):
            raise _fails("opening", "the sum does not open the clients' commitments")
        mean, weight = self.quantizer.decode(total)
        header = first.header
        secret = shared_secret(self.config, header.round, randomness)
        return Result(mean, total, weight, header.participants, header.included, secret)

    def _check_range(self, result: Result) -> None:
        """Refuse what no clients that clip and weigh as agreed can sum to: one of them cheats."""
        most = result.weight * self.config.levels
        if result.weight > result.participants * self.config.max_weight or int(result.total.max()) > most:
            raise _fails("range", "the sum is beyond what its clients may send; one of them cheats")

    def _compare(self, first: Header, second: Header, model: str, training: str) -> None:
        same = ("agreed", "participants", "included")
        if any(getattr(first, name) != getattr(second, name) for name in same):
            raise _fails("participants", "the servers speak of unlike participants")
        if first.participants < self.config.threshold:
            raise _fails(
                "threshold", f"the sum is of {first.participants} clients, fewer than {self.config.threshold}"
            )
        if first.participants > self.config.max_clients:
            raise _fails("capacity", f"the sum is of {first.participants} clients; it may have wrapped")
        if not first.model == second.model == model:
            raise _fails(
                "model",
                "the sum is of updates to another model than this client's, or this client, which missed a "
                "round, lacks the key of its tag (clients.secret): take another client's model and key",
            )
        if first.training != second.training or (first.included and first.training != training):
            raise _fails(
                "training", "the sum is of updates that were trained in another way than this client's"
            )

    def __repr__(self) -> str:
        return f"JanusClient({self.keys.name!r}, session={self.config.session!r})"


def _fails(check: Check, what: str) -> VerificationError:
    return VerificationError(check, f"{what}; the round is refused and the model stays as it is")
