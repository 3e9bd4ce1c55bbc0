"""The protocol: exact sums, dropouts, several rounds, and everything that must be refused."""

import dataclasses
import json
import pickle

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from hexad.core.errors import InputError
from hexad.federated.janus.agreement import Entry, agree, write_list
from hexad.federated.janus.attacks import ATTACKS, make_scene
from hexad.federated.janus.client import JanusClient, model_digest
from hexad.federated.janus.client_memory import ClientFolder
from hexad.federated.janus.envelopes import Header, open_sealed, read_header, seal
from hexad.federated.janus.envelopes import sign as sign_message
from hexad.federated.janus.errors import ProtocolError, VerificationError
from hexad.federated.janus.groups import GROUPS
from hexad.federated.janus.keys import Keys, PublicKeys, Roster, Servers, load_public
from hexad.federated.janus.server import JanusServer
from hexad.federated.janus.session_file import SessionFile


def refused(check, function, *arguments, kind=ProtocolError):
    """The call is refused by that check, in one line."""
    with pytest.raises(kind) as caught:
        function(*arguments)
    assert caught.value.check == check, caught.value
    assert "\n" not in str(caught.value)
    return str(caught.value)


def encoded_sum(session, updates, weights, names, seed=3):
    """What the named clients' encoded vectors sum to: by the clients' own generators, drawn again."""
    total = np.zeros(session.s0.config.dim, np.uint64)
    for place, name in enumerate(session.clients):
        if name in names:
            rng = np.random.default_rng(seed + place)
            total += session.clients[name].quantizer.encode(updates[name], weights[name], rng)
    return total


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("modulus_bits", [32, 64])
def test_every_client_gets_the_exact_sum(make, updates, group, modulus_bits):
    session = make(group=group, modulus_bits=modulus_bits, max_clients=65)
    vectors, weights = updates()
    results = session.run_round(vectors, weights)
    expected = encoded_sum(session, vectors, weights, vectors)
    exact = sum(weights[n] * np.clip(vectors[n], -1, 1) for n in vectors) / sum(weights.values())
    for result in results.values():
        assert np.array_equal(result.total, expected)
        assert result.weight == sum(weights.values())
        assert result.participants == 4
        assert result.included
        # Rounding: each client's error is below a step; the card asks for C 2^-b sqrt(1/n) 4.
        assert np.abs(result.mean - exact).max() <= 4 * 2**-16 / np.sqrt(4)


def test_who_drops_out_changes_nothing_but_the_participants(make, updates):
    session = make()
    vectors, weights = updates()
    present = {name: vectors[name] for name in "abd"}
    results = session.run_round(present, weights)
    expected = encoded_sum(session, vectors, weights, present)
    assert all(np.array_equal(result.total, expected) for result in results.values())
    assert [result.included for result in results.values()] == [True, True, False, True]
    assert session.s0.participants == session.s1.participants == ("a", "b", "d")
    # A client that reached S_0 alone is out as well.
    again = session.run_round(vectors, weights, lost=["b"])
    assert [result.included for result in again.values()] == [True, False, True, True]


def test_the_order_of_arrival_does_not_matter(make, updates):
    session = make()
    vectors, weights = updates()
    messages = {n: session.clients[n].protect(vectors[n], weights[n], 1) for n in vectors}
    for server in (session.s0, session.s1):
        server.begin(1)
    for name in "dbca":
        session.s0.submit(messages[name].to_s0)
    for name in "cabd":
        session.s1.submit(messages[name].to_s1)
    session.settle()
    result = session.clients["a"].verify_and_unmask(session.s0.reply("a"), session.s1.reply("a"), 1)
    assert np.array_equal(result.total, encoded_sum(session, vectors, weights, vectors))


def test_many_rounds_with_clients_that_join_and_leave(make, updates):
    session = make()
    vectors, weights = updates(names="abcdef")
    for number, names in ((1, "abcd"), (2, "abc"), (5, "abcde"), (6, "abcdef"), (7, "bcdef")):
        # Joining is to be in the roster and to know the servers' keys; leaving is to be taken from it.
        for name in names:
            if name not in session.s0.roster:
                keys = Keys.generate(name)
                roster = session.s0.roster.joined(keys.public)
                session.s0.roster = session.s1.roster = roster
                session.clients[name] = JanusClient(keys, session.s0.servers, session.s0.config)
        for name in set(session.s0.roster) - set(names) - set("d"):
            session.s0.roster = session.s1.roster = session.s0.roster.left(name)
            del session.clients[name]
        results = session.run_round({n: vectors[n] for n in names}, weights, number)
        exact = sum(weights[n] * np.clip(vectors[n], -1, 1) for n in names)
        exact /= sum(weights[n] for n in names)
        assert np.abs(results["b"].mean - exact).max() < 2**-14
    assert session.s0.round == 7
    assert set(session.s0.roster) == set("bcdef")


def test_one_number_and_an_update_of_zeros(make):
    session = make(length=1)
    clients = list(session.clients.values())
    # Encoded zeros (an update at -clip, with no weight): the commitment's message part is the identity.
    vectors = [np.array([5, 1], np.uint64), np.array([0, 0], np.uint64), np.array([9, 2], np.uint64)]
    messages = {c.keys.name: c.protect_encoded(v, 1) for c, v in zip(clients, vectors, strict=False)}
    session.exchange(messages, 1)
    result = clients[0].verify_and_unmask(session.s0.reply("a"), session.s1.reply("a"), 1)
    assert result.total.tolist() == [14, 3]


def test_a_sum_of_zeros_verifies_and_has_no_mean(make):
    session = make(length=1)
    messages = {n: c.protect_encoded(np.zeros(2, np.uint64), 1) for n, c in session.clients.items()}
    session.exchange(messages, 1)
    replies = session.s0.reply("a"), session.s1.reply("a")
    with pytest.raises(VerificationError, match="weights of the sum are zero"):
        session.clients["a"].verify_and_unmask(*replies, 1)


def test_masks_and_randomness_are_fresh(session):
    client, servers = session.clients["a"], (session.s0, session.s1)
    seen = set()
    for number in (1, 2, 3):
        sent = client.protect(np.zeros(6), 1, number)
        for server, message in zip(servers, sent, strict=True):
            _, line, sealed = read_header(message)
            payload = open_sealed(line, sealed, server.keys, client.keys.public)
            pieces = [payload[:32], payload[-65:-33], payload[-33:]]
            seen.update(pieces if server.role == 0 else pieces[:1])
    assert len(seen) == 3 * (3 + 1)


def test_a_client_counts_what_it_clips_also_when_it_sends_again(session, tmp_path):
    client, update = session.clients["a"], np.array([-1.5, -1.0, 0.0, 1.0, 1.1, 7.0])
    client.protect(update, 1, 1)
    assert client.clipped == 3
    client.protect(update / 7, 1, 2)
    assert client.clipped == 0
    with ClientFolder(tmp_path / "a", client.config) as folder:
        sent = folder.masking(client)(update, 1, 3)
        client.clipped = 0
        assert folder.masking(client)(update, 1, 3) == sent
    assert client.clipped == 3


def test_messages_to_s1_do_not_grow_with_the_update(make):
    sizes = []
    for length in (1, 5000):
        session = make(length=length)
        sent = session.clients["a"].protect(np.zeros(length), 1, 1)
        sizes.append([len(message) for message in sent])
    assert sizes[1][0] - sizes[0][0] == 8 * 4999
    assert sizes[0][1] == sizes[1][1] <= 1024


# What a cheating server sends.


@pytest.mark.parametrize("role", [0, 1])
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_a_cheating_server_is_caught(make, updates, attack, role):
    session = make()
    vectors, weights = updates()
    scene = make_scene(session, "b", role, vectors, weights, seed=1)
    client = session.clients["b"]
    honest = client.verify_and_unmask(session.s0.reply("b"), session.s1.reply("b"), 2)
    for _ in range(12 if attack.name == "bit-flip" else 3):
        replies = attack.run(scene)
        with pytest.raises(ProtocolError) as caught:
            client.verify_and_unmask(*replies, 2)
        assert caught.value.check in attack.caught_by
    # Not one byte of the client's keys or settings moved: the honest replies still verify.
    again = client.verify_and_unmask(session.s0.reply("b"), session.s1.reply("b"), 2)
    assert np.array_equal(again.total, honest.total)


def test_the_attacks_are_many_and_really_change_something(make, updates):
    assert len({attack.name for attack in ATTACKS}) >= 16
    session = make()
    vectors, weights = updates()
    scene = make_scene(session, "b", 0, vectors, weights, seed=1)
    honest = session.s0.sums()
    for attack in ATTACKS:
        attack.run(scene)
        assert session.s0.sums() == honest  # the scene is as it was
    # What does not cheat is accepted: re-signing alone changes nothing.
    result = session.clients["b"].verify_and_unmask(*scene.forge(scene.payload), 2)
    assert result.participants == 4


def test_bytes_that_were_changed_on_the_way_do_not_open(session, updates):
    vectors, weights = updates()
    session.run_round(vectors, weights)
    replies, client = [session.s0.reply("a"), session.s1.reply("a")], session.clients["a"]
    rng = np.random.default_rng(0)
    start = replies[0].index(b"\n") + 1
    for place in rng.integers(start, len(replies[0]), 20):
        bad = bytearray(replies[0])
        bad[place] ^= 1 << int(rng.integers(8))
        refused("envelope", client.verify_and_unmask, bytes(bad), replies[1], 1)
    for cut in (0, 3, start, start + 20, len(replies[0]) - 1):
        refused("envelope", client.verify_and_unmask, replies[0][:cut], replies[1], 1)
    # A header changed on the way is not the one that was sealed.
    bad = replies[0].replace(b'"participants": 4', b'"participants": 5')
    refused("envelope", client.verify_and_unmask, bad, replies[1], 1)


def test_replies_of_the_wrong_servers_round_or_model(session, updates):
    vectors, weights = updates()
    session.run_round(vectors, weights)
    replies, client = (session.s0.reply("a"), session.s1.reply("a")), session.clients["a"]
    refused("recipient", client.verify_and_unmask, *replies[::-1], 1)
    refused("recipient", client.verify_and_unmask, replies[0], replies[0], 1)
    refused("round", client.verify_and_unmask, *replies, 2)
    refused("model", client.verify_and_unmask, *replies, 1, "f" * 64, kind=VerificationError)
    refused("recipient", session.clients["b"].verify_and_unmask, *replies, 1)
    assert client.verify_and_unmask(*replies, 1).participants == 4


def test_two_servers_that_agree_on_too_few_are_refused_by_the_client(session, updates):
    """The client counts itself; it does not rely on a server's threshold."""
    vectors, weights = updates()
    session.run_round(vectors, weights)
    messages = []
    for server in (session.s0, session.s1):
        header = read_header(server.reply("a"))[0]
        for changes in ({"participants": 2}, {"participants": 10**6}):
            changed = dataclasses.replace(header, **changes)
            messages.append(seal(changed, server.sums(), server.keys, session.clients["a"].keys.public))
    client = session.clients["a"]
    refused("threshold", client.verify_and_unmask, messages[0], messages[2], 1, kind=VerificationError)
    refused("capacity", client.verify_and_unmask, messages[1], messages[3], 1, kind=VerificationError)


# A server that leads a client to another model.


def test_a_client_that_was_led_to_another_model_drops_out_and_finds_out(session, updates):
    """Model-inconsistency attack: S_0 would learn the victim's update from a model made for it."""
    vectors, weights = updates()
    right, wrong = model_digest([np.zeros(6)]), model_digest([np.ones(6)])
    messages = {
        name: client.protect(vectors[name], weights[name], 1, wrong if name == "c" else right)
        for name, client in session.clients.items()
    }
    session.exchange(messages, 1)
    assert session.s0.participants == ("a", "b", "d")
    total = encoded_sum(session, vectors, weights, "abd")
    replies = {name: (session.s0.reply(name), session.s1.reply(name)) for name in "ac"}
    result = session.clients["a"].verify_and_unmask(*replies["a"], 1, right)
    assert np.array_equal(result.total, total)
    refused("model", session.clients["c"].verify_and_unmask, *replies["c"], 1, wrong, kind=VerificationError)


def test_a_client_that_names_two_models_or_two_updates_drops_out(session, updates):
    vectors, weights = updates()
    messages = {n: c.protect(vectors[n], weights[n], 1, "m") for n, c in session.clients.items()}
    client = session.clients["b"]
    encoded = client.quantizer.encode(vectors["b"], 1, np.random.default_rng(0))
    other = client.protect_encoded(encoded, 1, "n")
    messages["b"] = messages["b"]._replace(to_s1=other.to_s1)
    session.exchange(messages, 1)
    assert session.s1.participants == ("a", "c", "d")


def test_two_models_equally_common_end_the_round(session, updates):
    vectors, weights = updates()
    for server in (session.s0, session.s1):
        server.begin(1)
    for name, client in session.clients.items():
        sent = client.protect(vectors[name], weights[name], 1, "m" if name in "ab" else "n")
        session.s0.submit(sent.to_s0)
        session.s1.submit(sent.to_s1)
    assert "held by 2 clients each" in refused("model", session.settle)


# What a server refuses.


def test_messages_that_a_server_refuses(session, updates):
    vectors, _ = updates()
    server, client = session.s0, session.clients["a"]
    server.begin(3)
    refused("round", server.submit, client.protect(vectors["a"], 1, 2).to_s0)
    good = client.protect(vectors["a"], 1, 3)
    refused("envelope", server.submit, good.to_s1)
    refused("envelope", server.submit, b"")
    refused("envelope", server.submit, good.to_s0[:-1])
    stranger = JanusClient(Keys.generate("z"), server.servers, server.config)
    refused("roster", server.submit, stranger.protect(vectors["a"], 1, 3).to_s0)
    # Somebody who calls itself a, and has other keys.
    impostor = JanusClient(Keys.generate("a"), server.servers, server.config)
    refused("signature", server.submit, impostor.protect(vectors["a"], 1, 3).to_s0)
    for check, changes in (("session", {"session": "elsewhere"}), ("config", {"bits": 17})):
        other = JanusClient(client.keys, server.servers, dataclasses.replace(server.config, **changes))
        refused(check, server.submit, other.protect(vectors["a"], 1, 3).to_s0)
    assert server.submit(good.to_s0) == "a"
    refused("duplicate", server.submit, good.to_s0)
    refused("duplicate", server.submit, client.protect_encoded(np.zeros(7, np.uint64), 3).to_s0)


def test_payloads_that_a_server_refuses(session):
    """Signed and sealed as they should be, by a client of the roster."""
    server, keys, size = session.s0, session.clients["a"].keys, 7 * 8
    server.begin(1)
    config, point = server.config, server.group.base_mul(5)
    header = Header("masked", config.session, config.digest, 1, "a", "s0")
    order = server.group.order.to_bytes(32, "big")
    for check, payload in (
        ("length", bytes(size - 8) + bytes(32) + point),
        ("length", bytes(size + 8) + bytes(32) + point),
        ("length", b""),
        ("scalar", bytes(size) + order + point),
        ("point", bytes(size) + bytes(32) + b"\x02" + b"\xff" * 32),
    ):
        refused(check, server.submit, seal(header, payload, keys, server.keys.public))
    assert server.submit(seal(header, bytes(size) + bytes(32) + point, keys, server.keys.public)) == "a"


def test_one_malformed_commitment_fails_everybody_and_nobody_is_deceived(session, updates):
    """A client can stop a round, as the threat model says; it cannot make a wrong sum pass."""
    vectors, weights = updates()
    messages = {n: c.protect(vectors[n], weights[n], 1) for n, c in session.clients.items()}
    client, group = session.clients["d"], session.s0.group
    wrong = client.pedersen.commit(np.arange(7), 3)
    sealed = []
    for server, message in zip((session.s0, session.s1), messages["d"], strict=True):
        header, line, rest = read_header(message)
        payload = open_sealed(line, rest, server.keys, client.keys.public)
        sealed.append(seal(header, payload[: -group.element_size] + wrong, client.keys, server.keys.public))
    messages["d"] = type(messages["d"])(*sealed)
    session.exchange(messages, 1)
    for name, client in session.clients.items():
        replies = session.s0.reply(name), session.s1.reply(name)
        refused("opening", client.verify_and_unmask, *replies, 1, kind=VerificationError)


def test_too_few_clients_end_the_round_without_a_sum(session, updates):
    vectors, weights = updates()
    two = {name: vectors[name] for name in "ab"}
    assert "fewer than the threshold, 3" in refused("threshold", session.run_round, two, weights)
    assert session.s0.phase == "aborted"
    refused("round", session.s0.aggregate)
    refused("round", session.s0.reply, "a")
    # The next round is as if nothing had been.
    assert session.run_round(vectors, weights, 2)["a"].participants == 4


def test_too_many_clients_end_the_round(make, updates):
    session = make(max_clients=3)
    vectors, weights = updates()
    refused("capacity", session.run_round, vectors, weights)


def test_a_round_is_summed_once_and_with_one_set_of_participants(session, updates):
    vectors, weights = updates()
    messages = {n: c.protect(vectors[n], weights[n], 1) for n, c in session.clients.items()}
    session.exchange(messages, 1)
    s0, s1 = session.s0, session.s1
    refused("round", s0.aggregate)
    refused("round", s0.submit, messages["a"].to_s0)
    refused("round", s0.begin, 1)
    # S_1 cheats: it signs a second list, without b, to learn the difference of two sums.
    entries = {name: Entry("0" * 64, "") for name in "acd"}
    second = write_list(s0.config, 1, entries, s1.keys, "s0")
    refused("participants", s0.close, second)
    assert s0.close(s1.listing()).names == ("a", "b", "c", "d")
    # An earlier round never opens again.
    s0.begin(2)
    refused("round", s0.begin, 1)
    refused("round", s0.close, s1.listing())


def test_lists_that_a_server_refuses(session, updates):
    vectors, weights = updates()
    messages = {n: c.protect(vectors[n], weights[n], 1) for n, c in session.clients.items()}
    s0, s1 = session.s0, session.s1
    for server, place in ((s0, 0), (s1, 1)):
        server.begin(1)
        for message in messages.values():
            server.submit(message[place])
    own, theirs = s0.listing(), s1.listing()
    refused("round", s0.submit, messages["a"].to_s0)
    refused("recipient", s0.close, own)
    forged = write_list(s0.config, 1, {}, Keys("s1", bytes(32), bytes(31) + b"\1"), "s0")
    refused("signature", s0.close, forged)
    refused("round", s0.close, write_list(s0.config, 2, {}, s1.keys, "s0"))
    cut = theirs[:-5]
    refused("signature", s0.close, cut)
    assert s0.close(theirs).names == ("a", "b", "c", "d")


def test_agreement_is_the_same_from_both_sides_and_needs_both(session):
    config = session.s0.config
    first = {name: Entry(name * 64, "m") for name in "abcde"}
    second = {**{name: first[name] for name in "abc"}, "d": Entry("0" * 64, "m"), "f": Entry("f" * 64, "m")}
    assert agree(config, 1, first, second) == agree(config, 1, second, first)
    assert agree(config, 1, first, second).names == ("a", "b", "c")
    assert agree(config, 1, first, second).digest != agree(config, 2, first, second).digest


# Restarts.


def again(server, folder):
    server.release()
    return JanusServer(server.role, server.keys, server.servers, server.roster, server.config, folder)


def test_a_server_that_restarts_at_any_point_goes_on(make, updates, tmp_path):
    session = make()
    vectors, weights = updates()
    messages = {n: c.protect(vectors[n], weights[n], 1) for n, c in session.clients.items()}
    folders = [tmp_path / "session-0" / name for name in ("s0", "s1")]
    servers = [session.s0, session.s1]

    def restart():
        servers[:] = [again(server, folder) for server, folder in zip(servers, folders, strict=True)]
        session.s0, session.s1 = servers

    for server in servers:
        server.begin(1)
    restart()
    for name in messages:
        for server, message in zip(servers, messages[name], strict=True):
            server.submit(message)
        restart()
    refused("duplicate", servers[0].submit, messages["a"].to_s0)
    lists = [server.listing() for server in servers]
    restart()
    assert [server.listing() for server in servers] == lists
    for server, theirs in zip(servers, lists[::-1], strict=True):
        server.close(theirs)
    restart()
    # Closed is closed: no more messages, no other participants.
    refused("round", servers[0].submit, messages["a"].to_s0)
    other = write_list(session.s0.config, 1, {}, servers[1].keys, "s0")
    refused("participants", servers[0].close, other)
    for server in servers:
        server.aggregate()
    restart()
    refused("round", servers[0].aggregate)
    result = session.clients["a"].verify_and_unmask(servers[0].reply("a"), servers[1].reply("a"), 1)
    assert np.array_equal(result.total, encoded_sum(session, vectors, weights, vectors))
    restart()
    refused("round", servers[1].begin, 1)
    assert session.run_round(vectors, weights)["b"].participants == 4


def test_a_folder_belongs_to_one_server_of_one_session(make, tmp_path):
    session = make()
    s0 = session.s0
    arguments = (s0.keys, s0.servers, s0.roster)
    folder = tmp_path / "session-0" / "s0"
    with pytest.raises(InputError, match="in use by another process"):
        JanusServer(0, *arguments, s0.config, folder)
    s0.begin(1)
    s0.release()
    with pytest.raises(InputError, match="belongs to S_0 of session 'janus'"):
        JanusServer(0, *arguments, dataclasses.replace(s0.config, session="other"), folder)
    (folder / "state.json").write_text("{")
    with pytest.raises(InputError, match="is damaged"):
        JanusServer(0, *arguments, s0.config, folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        JanusServer(0, *arguments, s0.config, tmp_path / "file")


def test_roles_keys_and_rosters_that_are_refused(session, tmp_path):
    s0, s1 = session.s0, session.s1
    with pytest.raises(InputError, match="role is 2"):
        JanusServer(2, s0.keys, s0.servers, s0.roster, s0.config, tmp_path / "x")
    with pytest.raises(InputError, match="keys of s1 are not those"):
        JanusServer(0, s1.keys, s0.servers, s0.roster, s0.config, tmp_path / "x")
    assert not (tmp_path / "x").exists()
    with pytest.raises(InputError, match="name them s0 and s1"):
        Servers(s1.keys.public, s0.keys.public)
    twin = Keys("s1", s0.keys.sign.private_bytes_raw(), s0.keys.box.private_bytes_raw())
    with pytest.raises(InputError, match="the same keys"):
        Servers(s0.keys.public, twin.public)
    a = session.clients["a"].keys
    with pytest.raises(InputError, match="two parties are named 'a'"):
        Roster([a.public, a.public])
    sybil = Keys("b2", a.sign.private_bytes_raw(), a.box.private_bytes_raw())
    with pytest.raises(InputError, match="have the same key"):
        Roster([a.public, sybil.public])
    with pytest.raises(InputError, match="two parties are named 's0'"):
        Roster([s0.keys.public])
    refused("roster", s0.roster.left, "nobody")


def test_a_server_cannot_read_what_is_for_the_other(session, updates):
    vectors, _ = updates()
    sent = session.clients["a"].protect(vectors["a"], 1, 1)
    _, line, sealed = read_header(sent.to_s0)
    refused("envelope", open_sealed, line, sealed, session.s1.keys, session.clients["a"].keys.public)


def test_bad_calls_of_a_client_are_refused(session, updates):
    client = session.clients["a"]
    for update, weight, number, words in (
        (np.zeros(5), 1, 1, "shape"),
        (np.full(6, np.nan), 1, 1, "not finite"),
        (np.zeros(6), 0, 1, "weight is 0"),
        (np.zeros(6), 1001, 1, "weight is 1001"),
        (np.zeros(6), 1, 0, "round_number is 0"),
    ):
        with pytest.raises(InputError, match=words):
            client.protect(update, weight, number)


@pytest.mark.parametrize("message", ["x", None, 3, b"", b"janus2 " + b"[" * 4000 + b"\n"])
def test_what_is_no_message_at_all_is_refused(session, message):
    client, server = session.clients["a"], session.s0
    server.begin(1)
    for function in (server.submit, server.holds, server.lacks, server.check_list):
        refused("envelope", function, message)
    refused("envelope", client.verify_and_unmask, message, message, 1)


@pytest.mark.parametrize("number", [0, -1, 2**32, pytest.param(10**5000, id="huge"), 1.0, "1", None, True])
def test_numbers_that_are_no_round_are_refused_in_a_line(session, number):
    client = session.clients["a"]
    for function in (
        lambda: client.protect(np.zeros(6), 1, number),
        lambda: client.verify_and_unmask(b"", b"", number),
        lambda: session.s0.begin(number),
    ):
        with pytest.raises(InputError, match="round_number is"):
            function()
    assert session.s0.round == 0


def test_a_sum_beyond_the_range_of_its_clients_is_refused(session, updates):
    """A client weighs in with more than any may: the sum is proven, and what was proven is refused."""
    vectors, weights = updates()
    for number, spoil in ((1, {3: 2**40}), (2, {6: 10**6})):
        messages = {n: c.protect(vectors[n], weights[n], number) for n, c in session.clients.items()}
        client = session.clients["d"]
        encoded = client.quantizer.encode(vectors["d"], 1, np.random.default_rng(0))
        for place, value in spoil.items():
            encoded[place] = value
        messages["d"] = client.protect_encoded(encoded, number)
        session.exchange(messages, number)
        replies = session.s0.reply("a"), session.s1.reply("a")
        refused("range", session.clients["a"].verify_and_unmask, *replies, number, kind=VerificationError)


def test_the_ends_of_the_range_are_no_cheating(session):
    vectors = {name: np.full(6, 5.0) for name in session.clients}
    result = session.run_round(vectors, dict.fromkeys(vectors, 1000), 1)["a"]
    assert np.allclose(result.mean, 1)
    result = session.run_round({n: -v for n, v in vectors.items()}, dict.fromkeys(vectors, 1), 2)["a"]
    assert np.array_equal(result.mean, np.full(6, -1.0))


P = 2**255 - 19


@pytest.mark.parametrize("value", [0, 1, P - 1, P, P + 1])
def test_keys_of_small_order_are_refused(value):
    good = Keys.generate("a").public
    bad = value.to_bytes(32, "little")
    for sign, box in ((good.sign, bad), (bad, good.box), (bad[:-1] + bytes([bad[-1] | 128]), good.box)):
        with pytest.raises(InputError, match=r"a public key of a .*point of small order"):
            PublicKeys("a", sign, box)


def test_a_key_of_small_order_would_let_anybody_sign():
    """Why such keys are refused: this signature is good for every text."""
    key = Ed25519PublicKey.from_public_bytes(b"\1" + bytes(31))
    key.verify(b"\1" + bytes(31) + bytes(32), b"whatever")


def test_a_client_that_left_in_mid_round_is_summed_and_bricks_no_server(session, updates, tmp_path):
    vectors, weights = updates()
    messages = {n: c.protect(vectors[n], weights[n], 1) for n, c in session.clients.items()}
    servers = [session.s0, session.s1]
    for place, server in enumerate(servers):
        server.begin(1)
        for message in messages.values():
            server.submit(message[place])
        server.roster = server.roster.left("b")
    # Also where the servers start again in the meantime.
    for place, server in enumerate(servers):
        servers[place] = again(server, tmp_path / "session-0" / f"s{place}")
    session.s0, session.s1 = servers
    session.settle()
    result = session.clients["a"].verify_and_unmask(session.s0.reply("a"), session.s1.reply("a"), 1)
    assert np.array_equal(result.total, encoded_sum(session, vectors, weights, vectors))
    refused("roster", session.s0.reply, "b")


def test_parties_that_share_keys_are_refused(session, tmp_path):
    s0, s1, a = session.s0, session.s1, session.clients["a"].keys
    for sign, box in ((s1.keys, a), (a, s1.keys), (s1.keys, s1.keys)):
        spy = Keys("spy", sign.sign.private_bytes_raw(), box.box.private_bytes_raw())
        with pytest.raises(InputError, match="has the name or a key of s1; a client has its own"):
            JanusClient(spy, s0.servers, s0.config)
        with pytest.raises(InputError, match="has the name or a key of s1"):
            SessionFile.of(s0.config, [s0.keys.public, s1.keys.public, spy.public])
        with pytest.raises(InputError, match="has the name or a key of s1"):
            JanusServer(0, s0.keys, s0.servers, Roster([spy.public]), s0.config, tmp_path / "x")
    with pytest.raises(InputError, match="has the name or a key of s1"):
        JanusClient(s1.keys, s0.servers, s0.config)
    twin = Keys("b2", Keys.generate("b2").sign.private_bytes_raw(), a.box.private_bytes_raw())
    with pytest.raises(InputError, match="b2 and a have the same key"):
        Roster([a.public, twin.public])


def test_keys_that_are_not_in_the_session_are_refused(session):
    parties = [session.s0.keys, session.s1.keys, *(client.keys for client in session.clients.values())]
    file = SessionFile.of(session.s0.config, [keys.public for keys in parties])
    file.check_client(session.clients["a"].keys)
    for keys in (Keys.generate("a"), Keys.generate("z")):
        with pytest.raises(InputError, match="are not in the session file, or others"):
            file.check_client(keys)


@pytest.mark.parametrize("load", [Keys.load, SessionFile.load, lambda path: load_public([path])])
def test_deeply_nested_files_are_one_line(tmp_path, load):
    path = tmp_path / "file.json"
    path.write_text("[" * 200_000)
    path.chmod(0o600)
    with pytest.raises(InputError):
        load(path)


def test_errors_keep_their_check_between_processes():
    error = pickle.loads(pickle.dumps(VerificationError("opening", "no")))
    assert (type(error), error.check, str(error), error.exit_code) == (VerificationError, "opening", "no", 2)


@pytest.mark.parametrize(
    "change",
    [
        {"sender": "\ud800"},
        {"sender": "\x1b[2Jx\ny"},
        {"sender": "../a"},
        {"recipient": ""},
        {"session": "a b"},
        {"kind": "\x1b[2J"},
        {"model": "\ud800"},
        {"epoch": "a\nb"},
        {"training": "x" * 129},
        {"agreed": "é"},
    ],
)
def test_headers_that_could_not_be_printed_are_no_messages(session, change):
    config = session.s0.config
    good = Header("masked", config.session, config.digest, 1, "a", "s0")
    assert read_header(good.line())[0] == good
    assert "\x1b" not in refused("envelope", read_header, dataclasses.replace(good, **change).line())


@pytest.mark.parametrize("entry", [[None, None, None], "abc", ["x", "y"], {"a": 1, "b": 2, "c": 3}, 3])
def test_a_malformed_list_leaves_the_round_alone(session, updates, entry):
    vectors, weights = updates()
    for server in (session.s0, session.s1):
        server.begin(1)
    for name, client in session.clients.items():
        sent = client.protect(vectors[name], weights[name], 1)
        session.s0.submit(sent.to_s0)
        session.s1.submit(sent.to_s1)
    session.s0.listing()
    config = session.s0.config
    header = Header("list", config.session, config.digest, 1, "s1", "s0")
    bad = sign_message(header, json.dumps({"a": entry}).encode(), session.s1.keys)
    refused("envelope", session.s0.close, bad)
    assert session.s0.phase == "listed"
    session.settle()
    assert session.s0.participants == ("a", "b", "c", "d")


def test_folders_and_locks_are_their_owner_s_alone(session, tmp_path):
    session.s0.begin(1)
    with ClientFolder(tmp_path / "own", session.s0.config):
        for folder in (session.s0._store.folder, session.s0._store.round_folder, tmp_path / "own"):
            assert folder.stat().st_mode & 0o777 == 0o700
            for file in folder.glob("lock"):
                assert file.stat().st_mode & 0o777 == 0o600


def test_a_client_without_the_key_of_its_tag_is_told_which(session, updates):
    vectors, weights = updates()
    messages = {n: c.protect(vectors[n], weights[n], 1, "tag") for n, c in session.clients.items()}
    session.exchange(messages, 1)
    replies = session.s0.reply("a"), session.s1.reply("a")
    assert "clients.secret" in refused("model", session.clients["a"].verify_and_unmask, *replies, 1, "other")
