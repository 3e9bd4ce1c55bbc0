"""Seconds of a core and bytes of memory, within the bounds that were asked for.

Time is that of the process on a core (`process_time`), so that others at work on the machine do not count.
"""

import time
import tracemalloc

import numpy as np
import pytest

from hexad.federated.janus.generators import generators
from hexad.federated.janus.pedersen import Pedersen


def seconds(function, *arguments):
    start = time.process_time()
    result = function(*arguments)
    return result, time.process_time() - start


def test_with_7850_numbers_a_client_takes_a_fraction_of_half_a_second(make, updates):
    session = make(length=7850, max_weight=1000)
    vectors, weights = updates(length=7850)
    session.run_round(vectors, dict.fromkeys(weights, 1000), 1)
    client = session.clients["a"]
    _, protect = seconds(client.protect, vectors["a"], 1000, 2)
    replies = session.s0.reply("a"), session.s1.reply("a")
    _, verify = seconds(client.verify_and_unmask, *replies, 1)
    assert protect < 0.5
    assert verify < 0.5


def test_a_client_s_bytes_do_not_depend_on_the_number_of_clients(make, updates):
    sizes = []
    for n in (3, 30):
        names = [f"c{k}" for k in range(10, 10 + n)]
        session = make(names=names)
        vectors, weights = updates(names=names)
        messages = {name: session.clients[name].protect(vectors[name], weights[name], 1) for name in names}
        session.exchange(messages, 1)
        replies = session.s0.reply("c10"), session.s1.reply("c10")
        sizes.append([len(message) for message in (*messages["c10"], *replies)])
    # The number of participants has a digit more.
    assert [b - a for a, b in zip(*sizes, strict=True)] == [0, 0, 1, 1]


def fill(session, length):
    """A round of messages with zeros in them, which cost nothing to commit to, and random masks."""
    for server in (session.s0, session.s1):
        server.begin(1)
    for client in session.clients.values():
        sent = client.protect_encoded(np.zeros(length + 1, np.uint64), 1)
        session.s0.submit(sent.to_s0)
        session.s1.submit(sent.to_s1)
    lists = session.s0.listing(), session.s1.listing()
    session.s0.close(lists[1])
    session.s1.close(lists[0])


def peak_bytes(function):
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_server_does_not_hold_the_clients_vectors(make):
    length = 100_000
    session = make(names=[f"c{k}" for k in range(20)], length=length)
    fill(session, length)
    for server in (session.s0, session.s1):
        # The sum, a message sealed and open, its payload, and what is being hashed: not twenty vectors.
        assert peak_bytes(server.aggregate) < 7 * 8 * length


@pytest.mark.slow
def test_a_million_numbers(make, updates):
    length = 1_000_000
    names = [f"c{k}" for k in range(100)]
    session = make(names=names, length=length)
    client = session.clients["c0"]
    update = np.random.default_rng(0).normal(scale=0.3, size=length)
    sent, protect = seconds(client.protect, update, 1000, 1)
    assert protect < 8
    assert len(sent.to_s1) <= 1024
    fill(session, length)
    for server in (session.s0, session.s1):
        assert seconds(server.aggregate)[1] < 10
    replies = session.s0.reply("c0"), session.s1.reply("c0")
    from hexad.federated.janus.errors import VerificationError

    def verify():
        with pytest.raises(VerificationError, match="weights of the sum are zero"):
            client.verify_and_unmask(*replies, 1)

    assert seconds(verify)[1] < 8


@pytest.mark.slow
def test_two_threads_commit_to_what_one_commits_to(make):
    session = make()
    group, n = session.s0.group, 200_000
    generators(group, session.s0.config.label, n)
    values = np.random.default_rng(0).integers(0, 1 << 26, n, dtype=np.uint64)
    found = [Pedersen(group, n, session.s0.config.label, threads).commit(values, 7) for threads in (1, 2)]
    assert found[0] == found[1]
