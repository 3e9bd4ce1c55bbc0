"""What each server sees of updates of one number, for the script that tries to recover them."""

import numpy as np

from hexad.federated.janus.bruteforce import View
from hexad.federated.janus.client import word_type
from hexad.federated.janus.envelopes import open_sealed, read_header
from hexad.federated.janus.groups import scalar_from_bytes
from hexad.federated.janus.masks import expand, random_scalar, scalar_pad
from hexad.federated.janus.pedersen import Pedersen
from hexad.federated.janus.rounds import Session


def server_views(session: Session, seed: int) -> tuple[list[int], tuple[list[View], list[View]]]:
    """The encoded updates of all clients, and what S_0 and S_1 saw of each.

    Args:
        session: of length 1.
        seed: draws the updates.
    """
    rng, config, order = np.random.default_rng(seed), session.s0.config, session.s0.group.order
    values = [int(value) for value in rng.integers(0, config.levels + 1, len(session.clients))]
    first, second = [], []
    for value, client in zip(values, session.clients.values(), strict=True):
        sent = client.protect_encoded(np.array([value, 1], np.uint64), 1)
        seen = []
        for server, message in zip((session.s0, session.s1), sent, strict=True):
            _, line, sealed = read_header(message)
            seen.append(open_sealed(line, sealed, server.keys, client.keys.public))
        size = session.s0.group.element_size
        masked = np.frombuffer(seen[0][: -32 - size], word_type(config))
        rho = scalar_from_bytes(seen[0][-32 - size : -size], order)
        first.append(View(seen[0][-size:], [rho], masked.tolist(), 1))
        pad = expand(seen[1][:32], 1, config.dim, config.modulus_bits)
        s = scalar_pad(seen[1][:32], session.s1.group)
        as_number = int.from_bytes(seen[1][:32], "big") % order
        second.append(View(seen[1][-size:], [s, as_number], pad.tolist(), 1))
    return values, (first, second)


def leaky_view(pedersen: Pedersen, value: int) -> View:
    """What a server would see if it got the commitment and its randomness."""
    r = random_scalar(pedersen.group)
    return View(pedersen.commit([value, 1], r), [r], [], 1)
