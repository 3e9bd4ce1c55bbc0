"""What servers and colluding clients can find out: nothing but the sum."""

import numpy as np
import pytest

from hexad.core.errors import InputError
from hexad.federated.janus.bruteforce import SmallLogarithms, View, recover
from hexad.federated.janus.envelopes import open_sealed, read_header
from hexad.federated.janus.groups import GROUPS, get_group, scalar_from_bytes
from hexad.federated.janus.masks import expand, random_scalar, scalar_pad
from hexad.federated.janus.pedersen import Pedersen
from hexad.federated.janus.study_views import leaky_view, server_views

BITS = 12


@pytest.mark.parametrize("group", GROUPS)
def test_trying_all_small_numbers_finds_nothing_in_either_server_s_messages(make, group):
    session = make(names=tuple("abcdefgh"), length=1, bits=BITS, group=group)
    values, views = server_views(session, seed=0)
    pedersen = session.clients["a"].pedersen
    logarithms = SmallLogarithms(session.s0.group, pedersen.generator(0), BITS)
    for role in (0, 1):
        found = [recover(view, pedersen, logarithms) for view in views[role]]
        assert found == [None] * 8
    # The same script, given the commitment and its randomness together, finds every one.
    leaky = [leaky_view(pedersen, value) for value in values]
    assert [recover(view, pedersen, logarithms) for view in leaky] == values
    # And given both servers' messages, which is what must not happen.
    both = [
        View(first.commitment, [*first.scalars, *second.scalars], [], 1)
        for first, second in zip(*views, strict=True)
    ]
    assert [recover(view, pedersen, logarithms) for view in both] == values


def test_small_logarithms_are_found_and_others_are_not():
    group = get_group("secp256k1")
    base = group.hash_to_group(b"base")
    logarithms = SmallLogarithms(group, base, 9)
    for k in (0, 1, 31, 32, 33, 511):
        assert logarithms.find(group.mul(base, k)) == k
    assert logarithms.find(group.mul(base, 2**40)) is None
    with pytest.raises(InputError, match="more than 40"):
        SmallLogarithms(group, base, 41)


def test_n_minus_2_colluding_clients_and_a_server_learn_the_sum_of_the_other_two_alone(make, updates):
    """For any two updates with the same sum there is randomness that explains all they see.

    The generators of the test are multiples of h that the test knows, so that it can write the other
    explanation down; nobody knows them for the real ones. Pads are taken as one-time pads.
    """
    session = make()
    vectors, weights = updates()
    config, group = session.s0.config, session.s0.group
    pedersen = Pedersen(group, config.dim)
    logs = [random_scalar(group) for _ in range(config.dim)]
    pedersen._table = np.stack([group._row(group.mul(pedersen.h, log)) for log in logs])
    for client in session.clients.values():
        client.pedersen = pedersen
    messages = {n: c.protect(vectors[n], weights[n], 1) for n, c in session.clients.items()}
    session.exchange(messages, 1)

    def seen_by_s0(name):
        _, line, sealed = read_header(messages[name].to_s0)
        keys = session.clients[name].keys.public
        payload = open_sealed(line, sealed, session.s0.keys, keys)
        size = group.element_size
        words = np.frombuffer(payload[: -32 - size], "<u8")
        return words, scalar_from_bytes(payload[-32 - size : -size], group.order), payload[-size:]

    def secrets_of(name):
        _, line, sealed = read_header(messages[name].to_s1)
        seed = open_sealed(line, sealed, session.s1.keys, session.clients[name].keys.public)[:32]
        return expand(seed, 1, config.dim, 64), scalar_pad(seed, group)

    # a and b are honest; c, d and S_0 collude, and c and d give S_0 what S_1 sent them.
    true, pads = {}, {}
    for name in "ab":
        words, rho, commitment = seen_by_s0(name)
        pad, s = secrets_of(name)
        true[name], pads[name] = words - pad, (pad, s)
        assert pedersen.open(commitment, true[name], rho - s)
    shift = np.array([1, 2, 3, 4, 5, 6, 0], np.uint64)
    other = {"a": true["a"] + shift, "b": true["b"] - shift}
    view_of_s1 = {}
    for name in "ab":
        words, rho, commitment = seen_by_s0(name)
        pad = words - other[name]  # a pad that explains what S_0 saw
        moved = sum(log * (int(x) - int(y)) for log, x, y in zip(logs, true[name], other[name], strict=True))
        r = (rho - pads[name][1] + moved) % group.order
        assert pedersen.open(commitment, other[name], r)  # the commitment fits the other update just as well
        view_of_s1[name] = (pad, (rho - r) % group.order)
    # What S_1 sums, and sends to the colluding clients, is the same in both explanations.
    for place, total in ((0, lambda x, y: (x + y).tolist()), (1, lambda x, y: (x + y) % group.order)):
        assert total(view_of_s1["a"][place], view_of_s1["b"][place]) == total(
            pads["a"][place], pads["b"][place]
        )
    assert not np.array_equal(other["a"], true["a"])


def test_what_s_1_holds_does_not_depend_on_the_update(session):
    """S_1's message is a seed and a commitment with fresh randomness: the same law for any update."""
    client = session.clients["a"]
    updates = enumerate((-1.0, 0.0, 0.3), 1)
    lengths = {len(client.protect(np.full(6, value), 1, k).to_s1) for k, value in updates}
    assert len(lengths) == 1
    seen = set()
    for number in range(4, 24):
        _, line, sealed = read_header(client.protect(np.zeros(6), 1, number).to_s1)
        seen.add(open_sealed(line, sealed, session.s1.keys, client.keys.public))
    assert len({payload[:32] for payload in seen}) == len({payload[32:] for payload in seen}) == 20
