"""What a cheating server could send to a client, signed and sealed as it should be.

Each attack makes the two replies that a client gets where one server cheats. The cheating server has its own
keys, so every attack but those that pretend to be somebody else carries a good signature: what must catch it
is the protocol and not the encryption. The study and the tests run all of them.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt

from hexad.federated.janus.client import word_type
from hexad.federated.janus.envelopes import Header, read_header, seal
from hexad.federated.janus.errors import Check
from hexad.federated.janus.groups import scalar_from_bytes, scalar_to_bytes
from hexad.federated.janus.keys import Keys
from hexad.federated.janus.rounds import Session
from hexad.federated.janus.server import JanusServer


class Sums(NamedTuple):
    """A server's sums, taken apart."""

    words: UInt[np.ndarray, " dim"]
    scalar: int
    commitment: bytes


@dataclass(frozen=True)
class Scene:
    """A round that is summed and not yet answered, and what the cheating server kept of the one before.

    Attributes:
        session: its servers have aggregated the round.
        victim: the client that gets the replies.
        role: of the cheating server.
        earlier: its reply to the victim in the round before.
        earlier_sums: its payload in the round before.
        rng: draws where to cheat.
    """

    session: Session
    victim: str
    role: int
    earlier: bytes
    earlier_sums: bytes
    rng: np.random.Generator

    @property
    def server(self) -> JanusServer:
        """The one that cheats."""
        return (self.session.s0, self.session.s1)[self.role]

    @property
    def payload(self) -> bytes:
        """Its true sums."""
        return self.server.sums()

    @property
    def header(self) -> Header:
        """Of its true reply."""
        return read_header(self.server.reply(self.victim))[0]

    @property
    def sums(self) -> Sums:
        """Its true sums, taken apart."""
        return take_apart(self.server, self.payload)

    def replies(self, cheat: bytes) -> tuple[bytes, bytes]:
        """The victim's two replies, of which the cheating server's is `cheat`."""
        honest = (self.session.s0.reply(self.victim), self.session.s1.reply(self.victim))
        return (cheat, honest[1]) if self.role == 0 else (honest[0], cheat)

    def forge(self, payload: bytes | Sums, keys: Keys | None = None, **changes: Any) -> tuple[bytes, bytes]:
        """Replies with other sums or another header, signed by the cheating server."""
        content = payload if isinstance(payload, bytes) else put_together(payload)
        header = dataclasses.replace(self.header, **changes)
        signer, client = keys or self.server.keys, self.server.roster.member(header.recipient)
        if signer.name != header.sender:  # whoever signs, the header claims the other one
            signer = _renamed(signer, header.sender)
        return self.replies(seal(header, content, signer, client))


def take_apart(server: JanusServer, payload: bytes) -> Sums:
    """The words, the scalar and the commitment of a payload."""
    size = server.group.element_size
    return Sums(
        np.frombuffer(payload[: -32 - size], word_type(server.config)).copy(),
        scalar_from_bytes(payload[-32 - size : -size], server.group.order),
        payload[-size:],
    )


def put_together(sums: Sums) -> bytes:
    """The payload of sums."""
    return sums.words.tobytes() + scalar_to_bytes(sums.scalar) + sums.commitment


def _renamed(keys: Keys, name: str) -> Keys:
    return Keys(name, keys.sign.private_bytes_raw(), keys.box.private_bytes_raw())


def _place(scene: Scene) -> int:
    return int(scene.rng.integers(scene.server.config.dim))


def wrong_sum(scene: Scene) -> tuple[bytes, bytes]:
    """Add something to one number of the sum."""
    sums = scene.sums
    sums.words[_place(scene)] += sums.words.dtype.type(scene.rng.integers(1, 1000))
    return scene.forge(sums)


def wrong_randomness(scene: Scene) -> tuple[bytes, bytes]:
    """Add something to the sum of the randomness."""
    sums = scene.sums
    scalar = (sums.scalar + int(scene.rng.integers(1, 1000))) % scene.server.group.order
    return scene.forge(sums._replace(scalar=scalar))


def _without(scene: Scene) -> Sums:
    """The sums without one participant."""
    server, sums = scene.server, scene.sums
    left_out = str(scene.rng.choice([name for name in server.participants if name != scene.victim]))
    words, scalar, commitment = server.contribution(left_out)
    return Sums(
        sums.words - words,
        (sums.scalar - scalar) % server.group.order,
        server.group.combine([sums.commitment, server.group.neg(commitment)]),
    )


def dropped_client(scene: Scene) -> tuple[bytes, bytes]:
    """Leave a participant out of everything, and speak of all participants."""
    return scene.forge(_without(scene))


def dropped_update(scene: Scene) -> tuple[bytes, bytes]:
    """Leave a participant's update out, but not its commitment."""
    return scene.forge(_without(scene)._replace(commitment=scene.sums.commitment))


def replayed_round(scene: Scene) -> tuple[bytes, bytes]:
    """Send the reply of the round before, as it was."""
    return scene.replies(scene.earlier)


def relabelled_round(scene: Scene) -> tuple[bytes, bytes]:
    """Send the sums of the round before as those of this one."""
    return scene.forge(scene.earlier_sums)


def inconsistent_model(scene: Scene) -> tuple[bytes, bytes]:
    """Speak of another model than the victim's."""
    return scene.forge(scene.payload, model="0" * 64)


def forged_commitment(scene: Scene) -> tuple[bytes, bytes]:
    """Shift a number of the sum, and the commitment by just as much."""
    sums, place, group = scene.sums, _place(scene), scene.server.group
    shift = int(scene.rng.integers(1, 1000))
    sums.words[place] += sums.words.dtype.type(shift)
    generator = scene.session.clients[scene.victim].pedersen.generator(place)
    moved = group.mul(generator, shift if scene.role == 0 else -shift)
    return scene.forge(sums._replace(commitment=group.combine([sums.commitment, moved])))


def swapped_order(scene: Scene) -> tuple[bytes, bytes]:
    """Exchange two numbers of the sum."""
    sums = scene.sums
    first, second = scene.rng.choice(len(sums.words), 2, replace=False)
    sums.words[[first, second]] = sums.words[[second, first]]
    return scene.forge(sums)


def truncated_vector(scene: Scene) -> tuple[bytes, bytes]:
    """Leave the last numbers of the sum away."""
    sums = scene.sums
    return scene.forge(sums._replace(words=sums.words[: -int(scene.rng.integers(1, 3))]))


def lengthened_vector(scene: Scene) -> tuple[bytes, bytes]:
    """Send a number too many."""
    sums = scene.sums
    return scene.forge(sums._replace(words=np.append(sums.words, sums.words[:1])))


def bit_flip(scene: Scene) -> tuple[bytes, bytes]:
    """Flip one bit anywhere in the payload, before it is signed."""
    payload = bytearray(scene.payload)
    bit = int(scene.rng.integers(8 * len(payload)))
    payload[bit // 8] ^= 1 << bit % 8
    return scene.forge(bytes(payload))


def other_participants(scene: Scene) -> tuple[bytes, bytes]:
    """Name other participants."""
    return scene.forge(scene.payload, agreed="f" * 64)


def more_participants(scene: Scene) -> tuple[bytes, bytes]:
    """Say that there were more participants."""
    return scene.forge(scene.payload, participants=scene.header.participants + 1)


def denied_participant(scene: Scene) -> tuple[bytes, bytes]:
    """Tell the victim that it is, or is not, in the sum."""
    return scene.forge(scene.payload, included=not scene.header.included)


def other_recipient(scene: Scene) -> tuple[bytes, bytes]:
    """Send the reply that is for another client."""
    others = [name for name in scene.session.clients if name != scene.victim]
    return scene.replies(scene.server.reply(str(scene.rng.choice(others))))


def both_roles(scene: Scene) -> tuple[bytes, bytes]:
    """Answer for the other server too, with its own key."""
    other = scene.session.s1 if scene.role == 0 else scene.session.s0
    header = read_header(other.reply(scene.victim))[0]
    keys, client = _renamed(scene.server.keys, other.keys.name), scene.server.roster.member(scene.victim)
    fake = seal(header, scene.payload, keys, client)
    own = scene.server.reply(scene.victim)
    return (own, fake) if scene.role == 0 else (fake, own)


def other_session(scene: Scene) -> tuple[bytes, bytes]:
    """Send a reply of another session."""
    return scene.forge(scene.payload, session="elsewhere")


@dataclass(frozen=True)
class Attack:
    """An attack and the checks that may catch it."""

    run: Callable[[Scene], tuple[bytes, bytes]]
    caught_by: tuple[Check, ...]

    @property
    def name(self) -> str:
        """As in a table."""
        return str(getattr(self.run, "__name__", self.run)).replace("_", "-")


ATTACKS = (
    Attack(wrong_sum, ("opening",)),
    Attack(wrong_randomness, ("opening",)),
    Attack(dropped_client, ("commitments",)),
    Attack(dropped_update, ("opening",)),
    Attack(replayed_round, ("round",)),
    Attack(relabelled_round, ("commitments",)),
    Attack(inconsistent_model, ("model",)),
    Attack(forged_commitment, ("commitments",)),
    Attack(swapped_order, ("opening",)),
    Attack(truncated_vector, ("length",)),
    Attack(lengthened_vector, ("length",)),
    Attack(bit_flip, ("opening", "commitments", "point", "scalar")),
    Attack(other_participants, ("participants",)),
    Attack(more_participants, ("participants",)),
    Attack(denied_participant, ("participants",)),
    Attack(other_recipient, ("recipient",)),
    Attack(both_roles, ("signature",)),
    Attack(other_session, ("session",)),
)


def make_scene(session: Session, victim: str, role: int, updates: Any, weights: Any, seed: int) -> Scene:
    """Run two rounds of a session and stop before the second is answered."""
    first = session.s0.round + 1
    session.run_round(updates, weights, first)
    server = (session.s0, session.s1)[role]
    earlier, earlier_sums = server.reply(victim), server.sums()
    messages = {
        name: session.clients[name].protect(update, weights[name], first + 1)
        for name, update in updates.items()
    }
    session.exchange(messages, first + 1)
    return Scene(session, victim, role, earlier, earlier_sums, np.random.default_rng(seed))
