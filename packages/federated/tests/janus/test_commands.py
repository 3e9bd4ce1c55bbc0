"""Two organisations' servers and four clients exchange files, as they would by hand."""

import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from hexad.core.errors import InputError
from hexad.federated.janus.keys import Keys
from hexad.federated.janus.session_file import SessionFile

NAMES = ("a", "b", "c", "d")


@pytest.fixture
def parties(hexad, tmp_path):
    """Keys of all, a session file, and each client's update."""
    for name in ("s0", "s1", *NAMES):
        assert hexad("keys", name, "--out", tmp_path / "keys")[0] == 0
    rng = np.random.default_rng(0)
    for name in NAMES:
        arrays = {"w": rng.normal(scale=0.3, size=(3, 4)).astype(np.float32), "b": rng.normal(size=4)}
        np.savez(tmp_path / f"{name}.npz", **arrays)
    code, _, error = hexad(
        "session", tmp_path / "keys", "--like", tmp_path / "a.npz",
        "--out", tmp_path / "session.json", "--clip", 4,
    )  # fmt: skip
    assert code == 0, error
    return tmp_path


@pytest.fixture
def step(hexad, parties):
    """Run a command of one party in the session; gives (exit code, JSON or None, stderr)."""

    def run(command, who, *words, number=1):
        code, out, error = hexad(
            command, *words, "--session", parties / "session.json",
            "--keys", parties / "keys" / f"{who}.key.json", "--round", number, "--json",
        )  # fmt: skip
        assert "Traceback" not in error
        return code, json.loads(out) if out else None, error

    return run


def protect_all(step, parties, number=1, names=NAMES):
    for place, name in enumerate(names):
        out = parties / f"box-{number}"
        code, report, error = step(
            "protect", name, parties / f"{name}.npz", "-w", place + 1, "-o", out, number=number
        )
        assert code == 0, error
        assert report["bytes"][1] <= 1024
    return parties / f"box-{number}"


def serve(step, parties, box, number=1):
    for who in ("s0", "s1"):
        code, report, error = step("aggregate", who, box, "--state", parties / who, "-o", box, number=number)
        assert code == 0, error
    for who, other in (("s0", "s1"), ("s1", "s0")):
        code, report, error = step(
            "aggregate", who, "--state", parties / who,
            "--peer-list", box / f"{other}-round-{number}-to-{who}.janus", "-o", box, number=number,
        )  # fmt: skip
        assert code == 0, error
    return report


def replies(box, name, number=1):
    return [box / f"{who}-round-{number}-to-{name}.janus" for who in ("s1", "s0")]


def test_a_round_by_files_gives_every_client_the_mean(step, parties, hexad):
    box = protect_all(step, parties)
    report = serve(step, parties, box)
    assert report["participants"] == list(NAMES)
    expected = {}
    for array in ("w", "b"):
        values = [np.load(parties / f"{name}.npz")[array] for name in NAMES]
        expected[array] = sum((k + 1) * value.astype(float) for k, value in enumerate(values)) / 10
    for name in NAMES:
        mean = parties / f"mean-{name}.npz"
        code, report, error = step(
            "verify", name, *replies(box, name), "-o", mean, "--like", parties / "a.npz"
        )
        assert code == 0, error
        assert report == {"mean": str(mean), "round": 1, "participants": 4, "weight": 10, "included": True}
        with np.load(mean) as found:
            assert found["w"].shape == (3, 4)
            for array, value in expected.items():
                assert np.abs(found[array] - value).max() < 4 * 2 * 4 / 65535
    # Text for people, and a flat mean without --like.
    code, out, _ = hexad(
        "verify", *replies(box, "a"), "-s", parties / "session.json", "-k", parties / "keys/a.key.json",
        "-r", 1, "-o", parties / "flat.npz",
    )  # fmt: skip
    assert code == 0
    assert "verified mean of 4 updates, total weight 10; yours is among them" in out
    assert np.load(parties / "flat.npz")["mean"].shape == (16,)


def test_a_second_round_and_a_client_that_joins(step, parties, hexad):
    serve(step, parties, protect_all(step, parties))
    assert hexad("keys", "e", "--out", parties / "keys")[0] == 0
    publics = sorted((parties / "keys").glob("*.public.json"))
    arguments = ("--like", parties / "a.npz", "--out", parties / "session.json", "--clip", 4)
    assert hexad("session", *publics, *arguments)[0] == 0
    shutil.copy(parties / "a.npz", parties / "e.npz")
    box = protect_all(step, parties, 2, ("b", "c", "e"))
    assert serve(step, parties, box, 2)["participants"] == ["b", "c", "e"]
    # a sent nothing, and gets the mean nevertheless.
    code, report, error = step("verify", "a", *replies(box, "a", 2), "-o", parties / "mean.npz", number=2)
    assert (code, report["included"]) == (0, False), error
    # The first round's replies do not pass for the second's.
    old = replies(parties / "box-1", "a")
    code, _, error = step("verify", "a", *old, "-o", parties / "x.npz", number=2)
    assert (code, "the reply of s0 to a in round 2" in error.replace("\n", " ")) == (2, True)
    assert not (parties / "x.npz").exists()


def test_a_server_s_commands_may_be_repeated_and_taken_apart(step, parties):
    box = protect_all(step, parties)
    first, rest = sorted(box.glob("a-*")), sorted(set(box.iterdir()) - set(box.glob("a-*")))
    mine = [path for path in (*first, *rest) if "-to-s0" in path.name]
    code, report, _ = step("aggregate", "s0", mine[0], "--state", parties / "s0", "--keep-open", "-o", box)
    assert (code, report["taken"], report["list"]) == (0, ["a"], None)
    # Again, with more: what was taken is taken.
    code, report, _ = step("aggregate", "s0", *mine, "--state", parties / "s0", "--keep-open", "-o", box)
    assert (code, report["taken"], report["refused"]) == (0, list(NAMES), [])
    code, report, error = step("aggregate", "s0", "--state", parties / "s0", "-o", box)
    assert code == 0, error
    # The same command again, after a crash, writes the same list; what comes late is refused.
    code, again, _ = step("aggregate", "s0", *mine, "--state", parties / "s0", "-o", box)
    assert (code, again["list"]) == (0, report["list"])
    _, late, _ = step("protect", "a", parties / "a.npz", "-w", 9, "-o", parties, "--state", parties / "new")
    code, _, error = step("aggregate", "s0", late["to_s0"], "--state", parties / "s0", "-o", box)
    assert (code, "takes no more messages" in error) == (2, True)
    step("aggregate", "s1", box, "--state", parties / "s1", "-o", box)
    lists = {who: next(box.glob(f"{who}-round-1-to-s*.janus")) for who in ("s0", "s1")}
    for _ in range(2):  # a crash while replies are written: the same command again
        code, report, error = step(
            "aggregate", "s0", "--state", parties / "s0", "--peer-list", lists["s1"], "-o", box
        )
        assert code == 0, error
    # Another list of S_1 for the closed round is refused.
    session = SessionFile.load(parties / "session.json")
    from hexad.federated.janus.agreement import write_list

    forged = write_list(session.config, 1, {}, Keys.load(parties / "keys/s1.key.json"), "s0")
    (parties / "forged.janus").write_bytes(forged)
    code, _, error = step(
        "aggregate", "s0", "--state", parties / "s0", "--peer-list", parties / "forged.janus", "-o", box
    )
    assert (code, "participants cannot be changed" in error) == (2, True)


def test_arrays_are_summed_by_name_whatever_their_order_in_the_file(step, parties):
    arrays = dict(np.load(parties / "b.npz"))
    np.savez(parties / "b.npz", **dict(reversed(arrays.items())))
    box = protect_all(step, parties)
    serve(step, parties, box)
    code, _, error = step(
        "verify", "a", *replies(box, "a"), "-o", parties / "mean.npz", "--like", parties / "b.npz"
    )
    assert code == 0, error
    updates = [np.load(parties / f"{name}.npz") for name in NAMES]
    with np.load(parties / "mean.npz") as mean:
        for name, array in arrays.items():
            wanted = np.average([update[name] for update in updates], axis=0, weights=[1, 2, 3, 4])
            assert mean[name].shape == array.shape
            np.testing.assert_allclose(mean[name], wanted, atol=1e-3)
    np.savez(parties / "renamed.npz", v=arrays["w"], b=arrays["b"])
    code, _, error = step(
        "verify", "a", *replies(box, "a"), "-o", parties / "x.npz", "--like", parties / "renamed.npz"
    )
    assert (code, "other names or shapes" in error) == (2, True)


def test_clipped_numbers_and_lost_messages_are_told(step, parties):
    np.savez(parties / "a.npz", w=np.full((3, 4), 9.0), b=np.zeros(4))
    code, report, error = step("protect", "a", parties / "a.npz", "-w", 1, "-o", parties / "out")
    assert (code, report["clipped"]) == (0, 12)
    assert "12 of 16 numbers clipped to 4; take a session with a larger clip" in error
    next((parties / "keys").rglob("round-1-to-s0.janus")).unlink()
    code, _, error = step("protect", "a", parties / "a.npz", "-w", 1, "-o", parties / "out")
    assert (code, "round-1-to-s0.janus is gone" in error.replace("\n", " ")) == (2, True)


def test_a_session_by_length_is_for_one_array(hexad, step, parties):
    (parties / "session.json").unlink()
    code, _, error = hexad(
        "session", parties / "keys", "--length", 16, "--threshold", 9, "--out", parties / "session.json"
    )
    assert (code, "4 clients are fewer than the threshold, 9" in error.replace("\n", " ")) == (0, True)
    code, _, error = step("protect", "a", parties / "a.npz", "-w", 1, "-o", parties / "out")
    assert (code, "holds 2 arrays and the session is for one" in error.replace("\n", " ")) == (2, True)
    np.savez(parties / "flat.npz", any=np.zeros((4, 4)))
    assert step("protect", "a", parties / "flat.npz", "-w", 1, "-o", parties / "out")[0] == 0


def test_no_round_is_begun_by_mistake(step, parties):
    box = protect_all(step, parties)
    for number, words in (
        (2, "the messages given are of round 1"),
        (20, "the messages given are of round 1"),
    ):
        code, _, error = step("aggregate", "s0", box, "--state", parties / "s0", "-o", box, number=number)
        assert (code, words in error.replace("\n", " ")) == (2, True)
    code, _, error = step("aggregate", "s0", "--state", parties / "s0", "-o", box)
    assert (code, "no message of round 1: none is given" in error) == (2, True)
    few = [next(box.glob(f"{name}-*-to-s0*")) for name in "ab"]
    code, report, _ = step("aggregate", "s0", *few, "--state", parties / "s0", "-o", box)
    assert (code, report["list"], report["taken"]) == (0, None, ["a", "b"])
    code, report, error = step("aggregate", "s0", box, "--state", parties / "s0", "-o", box)
    assert (code, report["taken"]) == (0, list(NAMES)), error


def test_a_session_file_is_not_overwritten_by_another(hexad, parties):
    before = (parties / "session.json").read_bytes()
    code, _, error = hexad(
        "session", parties / "keys", "--like", parties / "a.npz", "--out", parties / "session.json"
    )  # another clip
    assert (code, "no session of these parameters" in error.replace("\n", " ")) == (2, True)
    assert (parties / "session.json").read_bytes() == before
    code, _, error = hexad("session", parties / "keys", "--length", 4, "--out", "/dev/null")
    assert (code, "no session of these parameters" in error.replace("\n", " ")) == (2, True)
    assert not os.path.isfile("/dev/null")


def test_refused_messages_are_named_and_left_out(step, parties):
    box = protect_all(step, parties)
    path = next(box.glob("d-*-to-s0*"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    code, report, error = step("aggregate", "s0", box, "--state", parties / "s0", "-o", box)
    assert code == 1
    assert report["taken"] == ["a", "b", "c"]
    assert len(report["refused"]) == 1
    assert "does not open" in error.replace("\n", " ")


def test_what_a_client_refuses_leaves_no_file(step, parties):
    box = protect_all(step, parties)
    serve(step, parties, box)
    path = replies(box, "a")[0]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    mean = parties / "mean.npz"
    for arguments, words in (
        (replies(box, "a"), "does not open"),
        (replies(box, "b"), "0 of the 2 files given are the reply of s0 to a in round 1"),
        (replies(box, "a")[:1], "0 of the 1 files given are the reply of s0"),
        (replies(box, "a") * 2, "2 of the 4 files given are the reply of s0"),
        ([parties / "a.npz"] * 2, "0 of the 2 files"),
        ([parties / "none"], "does not exist"),
    ):
        code, _, error = step("verify", "a", *arguments, "-o", mean)
        assert (code, words in error.replace("\n", " ")) == (2, True), error
        assert not mean.exists()
    code, _, error = step("verify", "b", *replies(box, "b"), "-o", mean, "--model", parties / "a.npz")
    assert (code, "another model" in error) == (2, True)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: np.savez(path, w=np.full((3, 4), np.nan), b=np.zeros(4)), "12 numbers not finite"),
        (lambda path: np.savez(path, w=np.zeros((3, 4)), b=np.zeros(5)), "other names or shapes"),
        (lambda path: np.savez(path, v=np.zeros((3, 4)), b=np.zeros(4)), "other names or shapes"),
        (lambda path: np.savez(path, w=np.zeros(16)), "other names or shapes"),
        (lambda path: np.savez(path, w=np.zeros((3, 4), int), b=np.zeros(4)), "'w' of"),
        (lambda path: np.savez(path, w=np.array([None])), "no .npz file of plain arrays"),
        (lambda path: path.write_bytes(b"PK"), "no .npz file"),
        (lambda path: np.savez(path), "holds no arrays"),
        (lambda path: path.unlink(), "does not exist"),
    ],
)
def test_bad_updates_are_one_line_and_nothing_is_written(step, parties, spoil, words):
    spoil(parties / "a.npz")
    code, _, error = step("protect", "a", parties / "a.npz", "-w", 1, "-o", parties / "out")
    assert code == 2
    assert words in error.replace("\n", " "), error
    assert error.startswith("error: ")
    assert not (parties / "out").exists()


def test_bad_keys_and_sessions_are_one_line(step, parties, hexad):
    new = ("--length", 3, "-o", parties / "t.json")
    for arguments, words in (
        (("keys", "a", "--out", parties / "keys"), "keys are never overwritten"),
        (("keys", "../a", "--out", parties / "keys"), "name is '../a'"),
        (("session", parties / "keys/s0.public.json", *new), "keys of s1 are missing"),
        (("session", parties / "keys/s0.public.json", *new[2:]), "give --like"),
        (("session", parties / "a.npz", *new), "is no JSON"),
        (("session", parties / "keys/a.key.json", *new), "holds private keys"),
    ):
        code, _, error = hexad(*arguments)
        assert code == 2, arguments
        assert words in re.sub(r"\s+", " ", error), error
    assert not (parties / "t.json").exists()
    code, _, error = step("protect", "a", parties / "a.npz", "-w", 0, "-o", parties / "out")
    assert (code, "weight is 0" in error) == (2, True)
    code, _, error = step("aggregate", "a", "--state", parties / "x", "-o", parties / "out")
    assert (code, "a server's are those of s0 or s1" in error.replace("\n", " ")) == (2, True)
    (parties / "keys/a.key.json").chmod(0o644)
    code, _, error = step("protect", "a", parties / "a.npz", "-w", 1, "-o", parties / "out")
    assert (code, "chmod 600" in error) == (2, True)
    for text in ("{", "[]", '{"config": {}, "parties": []}', '{"config": {"lenght": 3}, "parties": []}'):
        (parties / "session.json").write_text(text)
        with pytest.raises(InputError):
            SessionFile.load(parties / "session.json")


def test_private_keys_are_private_and_are_not_printed(hexad, tmp_path):
    _, out, _ = hexad("keys", "bank-a", "--out", tmp_path, "--json")
    report = json.loads(out)
    secret = json.loads((tmp_path / "bank-a.key.json").read_text())
    assert os.stat(report["keys"]).st_mode & 0o777 == 0o600
    assert secret["sign"] not in out + (tmp_path / "bank-a.public.json").read_text()
    assert secret["sign"] not in repr(Keys.load(report["keys"]))


def test_without_the_extra_one_line_says_what_to_install():
    code = (
        "import sys; sys.modules['coincurve'] = None\n"
        "from hexad.core.errors import MissingExtraError\n"
        "from hexad.federated.janus import get_group\n"
        "try:\n    get_group('secp256k1')\n"
        "except MissingExtraError as error:\n    print(error)\n"
        "sys.modules['flwr'] = None\n"
        "try:\n    from hexad.federated.janus import JanusStrategy\n"
        "except MissingExtraError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert 'pip install "hexad-federated[janus]"' in first
    assert 'pip install "hexad-federated[flower,janus]"' in second


def test_the_same_command_again_masks_nothing_again(step, parties):
    box = protect_all(step, parties)
    before = {path.name: path.read_bytes() for path in box.iterdir()}
    protect_all(step, parties)
    assert {path.name: path.read_bytes() for path in box.iterdir()} == before
    code, _, error = step("protect", "a", parties / "b.npz", "-w", 1, "-o", box)
    assert (code, "was masked for round 1" in error.replace("\n", " ")) == (2, True)
    code, _, error = step("protect", "a", parties / "a.npz", "-w", 1, "-o", box, number=0)
    assert (code, "round_number is 0" in error) == (2, True)
    code, _, error = step("protect", "a", parties / "a.npz", "-w", 1, "-o", box, number=10**30)
    assert (code, "round_number is 2^32 or more" in error) == (2, True)
    code, _, _ = step("protect", "a", parties / "b.npz", "-w", 1, "-o", box, "--state", parties / "other")
    assert code == 0  # who names another folder takes leave of what was remembered


def test_replies_are_found_among_all_that_lies_in_a_folder(step, parties):
    box = protect_all(step, parties)
    serve(step, parties, box)
    mean = parties / "mean.npz"
    assert any("s0-round-1-to-s1" in path.name for path in box.iterdir())  # a list
    for given in (sorted(box.glob("s*.janus")), [box]):
        code, report, error = step("verify", "a", *given, "-o", mean)
        assert (code, report["participants"]) == (0, 4), error
    assert mean.stat().st_mode & 0o777 == 0o600
    kept = parties / "keys" / "a.key.rounds"
    assert {path.stat().st_mode & 0o077 for path in kept.rglob("*.json")} == {0}


def test_models_stand_under_keyed_tags_from_the_second_round_on(step, parties):
    from hexad.federated.janus.command_files import digest_of
    from hexad.federated.janus.envelopes import read_header
    from hexad.federated.janus.tags import model_tag

    session = SessionFile.load(parties / "session.json")
    tags = []
    for number in (1, 2):
        for place, name in enumerate(NAMES):
            code, _, error = step(
                "protect", name, parties / f"{name}.npz", "-w", place + 1, "--model", parties / "a.npz",
                "-o", parties / f"box-{number}", number=number,
            )  # fmt: skip
            assert code == 0, error
        box = parties / f"box-{number}"
        tags.append({read_header(path.read_bytes())[0].model for path in box.iterdir()})
        serve(step, parties, box, number)
        for _ in range(2):  # a second time too
            for name in NAMES:
                code, report, error = step(
                    "verify", name, *replies(box, name, number), "-o", parties / "mean.npz",
                    "--model", parties / "a.npz", number=number,
                )  # fmt: skip
                assert (code, report["participants"]) == (0, 4), error
    plain = model_tag(b"", session.config, digest_of(parties / "a.npz"))
    assert tags[0] == {plain}
    assert len(tags[1]) == 1
    assert tags[1] != {plain}


def test_a_client_s_keys_of_another_session_are_refused(step, parties, hexad):
    assert hexad("keys", "a", "--out", parties / "others")[0] == 0
    assert hexad("keys", "z", "--out", parties / "keys")[0] == 0
    code, _, error = step("protect", "z", parties / "a.npz", "-w", 1, "-o", parties / "out")
    assert (code, "are not in the session file" in error.replace("\n", " ")) == (2, True)
    code, _, error = hexad(
        "protect", parties / "a.npz", "-s", parties / "session.json",
        "-k", parties / "others/a.key.json", "-r", 1, "-w", 1, "-o", parties / "out",
    )  # fmt: skip
    assert (code, "are not in the session file" in error.replace("\n", " ")) == (2, True)
    assert not (parties / "out").exists()


def test_a_server_s_folder_that_was_set_back_is_refused(step, parties):
    box = protect_all(step, parties)
    step("aggregate", "s1", box, "--state", parties / "s1", "--keep-open", "-o", box)
    shutil.copytree(parties / "s1", parties / "copy")
    step("aggregate", "s1", "--state", parties / "s1", "-o", box)
    code, _, error = step("aggregate", "s1", "--state", parties / "copy", "-o", box)
    assert (code, "a round could be summed twice" in error.replace("\n", " ")) == (2, True)
