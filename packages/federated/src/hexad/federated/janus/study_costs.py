"""What a round costs one client, seconds of its core and bytes: Janus, and Flower's SecAgg functions."""

import importlib
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hexad.federated.janus.client import JanusClient
from hexad.federated.janus.config import JanusConfig
from hexad.federated.janus.groups import GroupName
from hexad.federated.janus.rounds import make_session


@dataclass(frozen=True)
class Cost:
    """Of one client in one round.

    Attributes:
        protect: seconds until its update is sent.
        verify: seconds from the servers' replies to the sum; of SecAgg, which verifies nothing, of its last
            stage.
        up: bytes it sends; the model or update it would send anyway is among them.
        down: bytes it gets, with the sum or the new model.
        to_s1: bytes to the second server.
        servers: the longer of the servers' seconds to sum, 0 where it was not measured.
    """

    protect: float
    verify: float
    up: int
    down: int
    to_s1: int = 0
    servers: float = 0.0

    @property
    def seconds(self) -> float:
        """Of both parts."""
        return self.protect + self.verify


def core_seconds(function: Callable[[], Any], repeats: int = 1) -> tuple[Any, float]:
    """What a function returns, and the median time that it keeps a core busy.

    Not the time on the wall, so that others at work on the machine do not count.
    """
    found = []
    for _ in range(repeats):
        start = time.process_time()
        result = function()
        found.append(time.process_time() - start)
    return result, statistics.median(found)


def janus_costs(
    clients: Iterable[int], length: int, seed: int, folder: Path, repeats: int, group: GroupName = "secp256k1"
) -> dict[int, Cost]:
    """A client's costs in rounds of several sizes, all messages real.

    Args:
        clients: the numbers of clients.
        length: numbers in an update.
        seed: draws the updates.
        folder: for the servers' state.
        repeats: how often each part is timed.
        group: of the commitments.
    """
    found = {}
    for n in clients:
        config = JanusConfig(length=length, group=group, session=f"cost-{n}-{length}-{os.getpid()}")
        rng = np.random.default_rng(seed)
        session = make_session([f"c{k}" for k in range(n)], config, folder / config.session)
        client: JanusClient = session.clients["c0"]
        try:
            update = rng.normal(scale=0.1, size=length)
            rounds = itertools.count(1)  # a client masks once a round
            _, protect = core_seconds(
                lambda c=client, u=update, r=rounds: c.protect(u, 100, next(r)), repeats
            )
            number = next(rounds)
            for server in (session.s0, session.s1):
                server.begin(number)
            sizes = (0, 0)
            for other in session.clients.values():
                sent = other.protect(rng.normal(scale=0.1, size=length), 100, number)
                session.s0.submit(sent.to_s0)
                session.s1.submit(sent.to_s1)
                sizes = (len(sent.to_s0), len(sent.to_s1))
            lists = session.s0.listing(), session.s1.listing()
            session.s0.close(lists[1])
            session.s1.close(lists[0])
            servers = max(core_seconds(session.s0.aggregate)[1], core_seconds(session.s1.aggregate)[1])
            replies = session.s0.reply("c0"), session.s1.reply("c0")
            _, verify = core_seconds(
                lambda c=client, r=replies, k=number: c.verify_and_unmask(r[0], r[1], k), repeats
            )
            down = len(replies[0]) + len(replies[1])
            found[n] = Cost(protect, verify, sum(sizes), down, sizes[1], servers)
        finally:
            session.release()
    return found


def size_of(values: dict[str, Any]) -> int:
    """Bytes of what one SecAgg message holds: byte strings as long as they are, numbers as 8."""

    def size(value: Any) -> int:
        if isinstance(value, (list, tuple)):
            return sum(map(size, value))
        return len(value) if isinstance(value, (bytes, str)) else 8

    return sum(map(size, values.values()))


def neighbours_of(n: int, complete: bool) -> int:
    """Neighbours of a client, itself among them: all in SecAgg, 4 log2(n) in SecAgg+."""
    return n if complete else min(n, 4 * int(np.ceil(np.log2(n))))


def secagg_costs(
    clients: Iterable[int], length: int, seed: int, repeats: int, complete: bool
) -> dict[int, Cost]:
    """The same for the client functions of Flower's SecAgg (complete) and SecAgg+, with their own defaults.

    One client's four stages are run as Flower runs them; what its neighbours send is made here, with keys and
    lengths as theirs. Nobody drops out, which is the cheapest case.
    """
    return {n: _secagg_cost(neighbours_of(n, complete), length, seed, repeats) for n in clients}


def _secagg_cost(neighbours: int, length: int, seed: int, repeats: int) -> Cost:
    from flwr.common import ndarrays_to_parameters
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import encrypt, generate_shared_key
    from flwr.common.secure_aggregation.secaggplus_constants import Key
    from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat
    from flwr.supercore.primitives.asymmetric import (
        bytes_to_public_key,
        generate_key_pairs,
        public_key_to_bytes,
    )

    # The package exports a function of the module's own name.
    flower: Any = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
    update = np.random.default_rng(seed).normal(scale=0.1, size=length)
    parameters = ndarrays_to_parameters([update])
    settings: dict[str, Any] = {
        Key.SAMPLE_NUMBER: neighbours,
        Key.SHARE_NUMBER: neighbours,
        Key.THRESHOLD: neighbours // 2 + 1,
        Key.CLIPPING_RANGE: 8.0,
        Key.TARGET_RANGE: 1 << 22,
        Key.MOD_RANGE: 1 << 32,
        Key.MAX_WEIGHT: 1000.0,
    }
    others = {node: (generate_key_pairs(), generate_key_pairs()) for node in range(1, neighbours)}
    publics = {
        node: (public_key_to_bytes(first[1]), public_key_to_bytes(second[1]))
        for node, (first, second) in others.items()
    }
    protect_seconds, verify_seconds, up, down = [], [], 0, 0
    for _ in range(repeats):
        state = flower.SecAggPlusState()
        state.nid = 0
        mine, setup = core_seconds(lambda s=state: flower._setup(s, settings))
        keys: dict[str, Any] = {"0": (state.pk1, state.pk2), **{str(k): v for k, v in publics.items()}}
        shares, sharing = core_seconds(lambda s=state, k=keys: flower._share_keys(s, k))
        length_of = [len(state.rd_seed_share_dict[0]), len(state.sk1_share_dict[0])]
        ciphertexts = []
        for node, (_, (secret, _)) in others.items():
            plain = share_keys_plaintext_concat(node, 0, *(os.urandom(size) for size in length_of))
            key = generate_shared_key(secret, bytes_to_public_key(state.pk2))
            ciphertexts.append(encrypt(key, plain))
        sent: dict[str, Any] = {Key.CIPHERTEXT_LIST: ciphertexts, Key.SOURCE_LIST: list(others)}
        masked, masking = core_seconds(
            lambda s=state, c=sent: flower._collect_masked_vectors(s, c, 100, parameters)
        )
        living: dict[str, Any] = {Key.ACTIVE_NODE_ID_LIST: [0, *others], Key.DEAD_NODE_ID_LIST: []}
        told, unmasking = core_seconds(lambda s=state, c=living: flower._unmask(s, c))
        protect_seconds.append(setup + sharing + masking)
        verify_seconds.append(unmasking)
        up = sum(map(size_of, (mine, shares, masked, told)))
        down = sum(map(size_of, (settings, keys, sent, living))) + 4 * length
    return Cost(statistics.median(protect_seconds), statistics.median(verify_seconds), up, down)
