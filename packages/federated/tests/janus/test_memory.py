"""What parties remember, so that no round is masked or summed twice: folders, marks and epochs."""

import shutil

import numpy as np
import pytest

from hexad.core.errors import InputError
from hexad.federated.janus.client import JanusClient
from hexad.federated.janus.client_memory import ClientFolder, Memory
from hexad.federated.janus.errors import ProtocolError
from hexad.federated.janus.server import JanusServer
from hexad.federated.janus.tags import model_tag, training_tag


def restarted(session, role, folder, mark=None):
    """A server of the session on another folder, or on its own again."""
    old = (session.s0, session.s1)[role]
    old.release()
    server = JanusServer(role, old.keys, old.servers, old.roster, old.config, folder, mark)
    setattr(session, f"s{role}", server)
    return server


def refused(check, function, *arguments):
    with pytest.raises(ProtocolError) as caught:
        function(*arguments)
    assert caught.value.check == check, caught.value


def test_a_lost_folder_takes_no_recorded_message_and_clients_refuse_its_sums(session, updates, tmp_path):
    """S_0 replays a part of a round to an S_1 that has forgotten it, to learn the difference of two sums."""
    vectors, weights = updates()
    session.run_round(vectors, weights, 1)
    recorded = {name: client.protect(vectors[name], 1, 2) for name, client in session.clients.items()}
    session.exchange(recorded, 2)
    fresh = restarted(session, 1, tmp_path / "fresh")
    fresh.begin(2)
    for name in "abc":
        refused("epoch", fresh.submit, recorded[name].to_s1)
    # Whoever never saw a sum names no folder, and is taken.
    client = session.clients["a"]
    new = JanusClient(client.keys, client.servers, client.config)
    assert fresh.submit(new.protect(vectors["a"], 1, 2).to_s1) == "a"
    # A client that knows the folder refuses a sum out of another, even where both servers speak of it alike.
    restarted(session, 0, tmp_path / "fresh-0")
    restarted(session, 1, tmp_path / "fresh-1")
    messages = {
        name: JanusClient(known.keys, known.servers, known.config).protect(vectors[name], 1, 1)
        for name, known in session.clients.items()
    }
    session.exchange(messages, 1)
    refused("epoch", client.verify_and_unmask, session.s0.reply("a"), session.s1.reply("a"), 1)


def test_a_folder_that_was_set_back_is_refused_by_its_mark(session, updates, tmp_path):
    vectors, _ = updates()
    folder, mark = tmp_path / "marked", tmp_path / "keys" / "mark.json"
    server = restarted(session, 1, folder, mark)
    for both in (session.s0, server):
        both.begin(1)
    messages = {name: client.protect(vectors[name], 1, 1) for name, client in session.clients.items()}
    for message in messages.values():
        session.s0.submit(message.to_s0)
        server.submit(message.to_s1)
    shutil.copytree(folder, tmp_path / "copy")
    session.settle()
    # A crash: the same folder goes on.
    assert restarted(session, 1, folder, mark).phase == "aggregated"
    session.s1.release()
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "copy", folder)
    with pytest.raises(InputError, match=r"or an older copy.*summed twice: name a new session"):
        restarted(session, 1, folder, mark)
    shutil.rmtree(folder)
    with pytest.raises(InputError, match="not the folder that this server left"):
        restarted(session, 1, folder, mark)
    mark.write_text("[" * 100_000)
    with pytest.raises(InputError, match="not the folder"):
        restarted(session, 1, folder, mark)


def test_what_a_server_keeps_is_its_own_to_read(session, updates, tmp_path):
    vectors, weights = updates()
    session.run_round(vectors, weights)
    files = [path for path in (tmp_path / "session-0" / "s0").rglob("*") if path.is_file()]
    assert {"state.json", "sums.bin", "a.message", "own.list"} <= {path.name for path in files}
    assert {path.stat().st_mode & 0o077 for path in files if path.name != "lock"} == {0}


def test_a_client_masks_once_a_round_whatever_interrupts_it(session, updates, tmp_path):
    vectors, _ = updates()
    first = session.clients["a"]
    with ClientFolder(tmp_path / "own", first.config) as folder:
        sent = folder.masking(first)(vectors["a"], 3, 5)
        with pytest.raises(InputError, match="has masked an update for round 5 already"):
            first.protect(vectors["a"], 3, 5)
        with pytest.raises(InputError, match="in use by another process"):
            ClientFolder(tmp_path / "own", first.config)
    # The process ended; another one goes on.
    client = JanusClient(first.keys, first.servers, first.config)
    with ClientFolder(tmp_path / "own", first.config) as folder:
        folder.memory.give_to(client)
        assert folder.masking(client)(vectors["a"], 3, 5) == sent
        for other in ((vectors["b"], 3, 5), (vectors["a"], 4, 5), (vectors["a"], 3, 5, "model")):
            with pytest.raises(InputError, match="another update, weight or model was masked for round 5"):
                folder.masking(client)(*other)
        with pytest.raises(InputError, match="has masked an update for round 5 already"):
            folder.masking(client)(vectors["a"], 3, 4)
        folder.masking(client)(vectors["a"], 3, 6)
    files = [path for path in (tmp_path / "own").iterdir() if path.name != "lock"]
    assert sorted(path.name for path in files) == [
        "round-6-to-s0.janus",
        "round-6-to-s1.janus",
        "rounds.json",
    ]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"round": "x"}', '{"epochs": [1]}', '{"other": 1}', "[" * 100_000]
)
def test_a_damaged_memory_is_one_line(session, tmp_path, text):
    with pytest.raises(InputError, match="is damaged"):
        Memory.from_json(text, "the file")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "rounds.json").write_text(text)
    with pytest.raises(InputError, match="is damaged"):
        ClientFolder(tmp_path / "own", session.s0.config)


# Tags: what stands in clear for a model.


def test_the_clients_of_a_sum_share_a_secret_that_no_server_can_compute(session, updates, tmp_path):
    vectors, weights = updates()
    results = session.run_round(vectors, weights, 1)
    (secret,) = {result.secret for result in results.values()}
    assert len(secret) == 32
    assert secret.hex() not in repr(results["a"])
    again = session.run_round(vectors, weights, 2)
    assert again["a"].secret not in (secret, b"")
    # By what each server holds of the sums alone, it comes out otherwise.
    from hexad.federated.janus.attacks import take_apart
    from hexad.federated.janus.tags import shared_secret

    held = [take_apart(server, server.sums()).scalar for server in (session.s0, session.s1)]
    order, config = session.s0.group.order, session.s0.config
    assert shared_secret(config, 2, (held[0] - held[1]) % order) == again["a"].secret
    assert again["a"].secret not in {shared_secret(config, 2, scalar) for scalar in held}


def test_a_guessed_model_does_not_give_its_tag_without_the_clients_secret(session):
    config = session.s0.config
    tags = {model_tag(secret, config, "digest") for secret in (b"", b"\1" * 32, b"\2" * 32)}
    assert len(tags) == 3
    assert model_tag(b"", config, "digest") != model_tag(b"", config, "digess")
    assert training_tag(b"", config, 1, "x") != training_tag(b"", config, 2, "x")


def test_a_folder_s_tag_is_the_same_for_a_round_that_is_verified_again(session, updates, tmp_path):
    vectors, weights = updates()
    with ClientFolder(tmp_path / "own", session.s0.config) as folder:
        assert folder.tag("", 1) == ""
        tags = []
        for number in (1, 2, 3):
            tags.append(folder.tag("digest", number))
            result = session.run_round(vectors, weights, number)["a"]
            folder.accept(session.clients["a"], result, number)
            assert folder.tag("digest", number) == tags[-1]
        assert len(set(tags)) == 3
        assert (tmp_path / "own" / "clients.secret").stat().st_mode & 0o777 == 0o600
        for text in ("[]", '{"1": "00"}', '{"x": ""}', "[" * 100_000):
            (tmp_path / "own" / "clients.secret").write_text(text)
            with pytest.raises(InputError, match=r"clients\.secret is damaged"):
                folder.tag("digest", 4)


def test_clients_that_were_told_to_train_otherwise_are_not_summed(session, updates):
    vectors, weights = updates()
    messages = {
        name: client.protect(vectors[name], weights[name], 1, "m", "slow" if name == "c" else "fast")
        for name, client in session.clients.items()
    }
    session.exchange(messages, 1)
    assert session.s0.participants == session.s1.participants == ("a", "b", "d")
    replies = {name: (session.s0.reply(name), session.s1.reply(name)) for name in "ac"}
    assert session.clients["a"].verify_and_unmask(*replies["a"], 1, "m", "fast").included
    refused("training", session.clients["a"].verify_and_unmask, *replies["a"], 1, "m", "slow")
    # Who is not in the sum may take it: its model is the same.
    assert not session.clients["c"].verify_and_unmask(*replies["c"], 1, "m", "slow").included


def test_the_last_sums_are_kept_until_the_next_round_is_over(session, updates):
    vectors, weights = updates()
    session.run_round(vectors, weights, 1)
    total = session.s0.sums()
    for server in (session.s0, session.s1):
        server.begin(2)
    slow = session.clients["d"]
    assert slow.verify_and_unmask(session.s0.reply("d", 1), session.s1.reply("d", 1), 1).participants == 4
    refused("round", session.s0.reply, "d", 2)
    refused("round", session.s0.reply, "d")
    session.exchange({n: c.protect(vectors[n], 1, 2) for n, c in session.clients.items()}, 2)
    assert slow.verify_and_unmask(session.s0.reply("d", 1), session.s1.reply("d", 1), 1).participants == 4
    assert slow.verify_and_unmask(session.s0.reply("d"), session.s1.reply("d"), 2).participants == 4
    # A round without a sum in between does not push them out.
    session.s0.begin(3)
    session.s0.abort()
    session.s0.begin(4)
    refused("round", session.s0.reply, "d", 1)
    assert session.s0.reply("d", 2)
    assert session.s0.summed == 2
    assert total != session.s0._store.read("sums.bin", 2)
    assert np.all([not list(session.s0._store.folder.glob("round-00000001/*"))])
