"""Exactness, tampering and brute force: what must come out as 1 or 0 and nothing between."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hexad.federated.janus.attacks import ATTACKS, make_scene
from hexad.federated.janus.bruteforce import SmallLogarithms, recover
from hexad.federated.janus.client import JanusClient, Result
from hexad.federated.janus.config import JanusConfig
from hexad.federated.janus.errors import ProtocolError, VerificationError
from hexad.federated.janus.rounds import Session, make_session
from hexad.federated.janus.study_views import leaky_view, server_views

Tell = Callable[..., None]


@dataclass(frozen=True)
class Exactness:
    """How the sums of rounds compare with NumPy's.

    Attributes:
        exact: share of numbers equal to the sum of the encoded updates, bit for bit.
        gap: largest distance of a mean from that of the float updates, over the bound of the card,
            4 clip 2^-b sqrt(1/n).
        rejected: honest rounds that a client refused.
    """

    exact: float
    gap: float
    rejected: int


def measure_exactness(config: JanusConfig, rounds: int, dropout: float, seed: int, folder: Path) -> Exactness:
    """Rounds of ten clients, a share of which drops out before or between the servers."""
    names = [f"c{k}" for k in range(10)]
    session = make_session(names, config, folder, rounding_seed=seed)
    twins = [np.random.default_rng(seed + place) for place in range(len(names))]
    rng = np.random.default_rng(seed)
    right, count, gap, rejected = 0, 0, 0.0, 0
    try:
        for number in range(1, rounds + 1):
            updates = {name: rng.normal(scale=0.3, size=config.length) for name in names}
            weights = {name: int(rng.integers(1, 200)) for name in names}
            gone = set(rng.choice(names, round(dropout * len(names)), replace=False).tolist())
            # Every other one of those is lost between the servers, and does send to S_0.
            between = set(sorted(gone)[::2])
            sending = {name: updates[name] for name in names if name not in gone or name in between}
            expected = np.zeros(config.dim, np.uint64)
            for name, twin in zip(names, twins, strict=True):
                if name in sending:
                    encoded = session.clients[name].quantizer.encode(updates[name], weights[name], twin)
                    expected += encoded if name not in gone else np.uint64(0)
            try:
                result: Result = session.run_round(sending, weights, number, lost=between)[names[0]]
            except VerificationError:
                rejected += 1
                continue
            present = [name for name in names if name not in gone]
            total = sum(weights[name] for name in present)
            mean = sum(np.clip(updates[n], -config.clip, config.clip) * weights[n] for n in present) / total
            bound = 4 * config.clip * 2.0**-config.bits / np.sqrt(len(present))
            right += int((result.total == expected).sum())
            count += config.dim
            gap = max(gap, float(np.abs(result.mean - mean).max() / bound))
    finally:
        session.release()
    return Exactness(right / max(count, 1), gap, rejected)


class TrustingClient(JanusClient):
    """Ablation: takes a sum without looking at commitments."""

    def verify_and_unmask(
        self, from_s0: bytes, from_s1: bytes, round_number: int, model: str = "", training: str = ""
    ) -> Result:
        """As `JanusClient`, but any sum passes."""
        self.pedersen.open = lambda c, m, r: True
        first, second = self._read(0, from_s0, round_number), self._read(1, from_s1, round_number)
        return self._accept(first, second._replace(commitment=first.commitment), model, training)


class OneCommitmentClient(JanusClient):
    """Ablation: checks the sum by S_0's commitment alone."""

    def verify_and_unmask(
        self, from_s0: bytes, from_s1: bytes, round_number: int, model: str = "", training: str = ""
    ) -> Result:
        """As `JanusClient`, without comparing the servers' commitments."""
        first, second = self._read(0, from_s0, round_number), self._read(1, from_s1, round_number)
        return self._accept(first, second._replace(commitment=first.commitment), model, training)


@dataclass(frozen=True)
class Caught:
    """How tampering ended.

    Attributes:
        shares: for each attack the share that the client refused.
        named: share of the refusals by a check that the attack should meet.
    """

    shares: dict[str, float]
    named: float


def measure_tampering(kind: type[JanusClient], repeats: int, seed: int, folder: Path, tell: Tell) -> Caught:
    """Let each server in turn cheat in every way, `repeats` times each."""
    config = JanusConfig(length=30)
    names = [f"c{k}" for k in range(5)]
    session = make_session(names, config, folder, rounding_seed=seed)
    rng = np.random.default_rng(seed)
    updates = {name: rng.normal(scale=0.3, size=config.length) for name in names}
    weights = {name: int(rng.integers(1, 200)) for name in names}
    victim = kind(session.clients["c1"].keys, session.s0.servers, config)
    caught = dict.fromkeys((attack.name for attack in ATTACKS), 0)
    named = 0
    try:
        for role in (0, 1):
            scene = make_scene(session, "c1", role, updates, weights, seed + role)
            for place, attack in enumerate(ATTACKS):
                tell((role + place / len(ATTACKS)) / 2, attack.name)
                for _ in range(repeats):
                    replies = attack.run(scene)
                    try:
                        victim.verify_and_unmask(*replies, session.s0.round)
                    except ProtocolError as error:
                        caught[attack.name] += 1
                        named += error.check in attack.caught_by
    finally:
        session.release()
    total = sum(caught.values())
    return Caught({name: found / (2 * repeats) for name, found in caught.items()}, named / max(total, 1))


def measure_brute_force(bits: int, clients: int, seed: int, folder: Path) -> dict[str, float]:
    """The share of updates that trying all small numbers recovers, from what each server saw, and leaked."""
    config = JanusConfig(length=1, bits=bits)
    session: Session = make_session([f"c{k}" for k in range(clients)], config, folder)
    try:
        values, views = server_views(session, seed)
        pedersen = session.clients["c0"].pedersen
        logarithms = SmallLogarithms(session.s0.group, pedersen.generator(0), bits)
        leaky = [leaky_view(pedersen, value) for value in values]
        found = {}
        for name, seen in (("s0", views[0]), ("s1", views[1]), ("leaky", leaky)):
            right = [
                recover(view, pedersen, logarithms) == value for view, value in zip(seen, values, strict=True)
            ]
            found[name] = float(np.mean(right))
        return found
    finally:
        session.release()
