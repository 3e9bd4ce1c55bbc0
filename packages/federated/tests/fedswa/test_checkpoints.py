"""Folders of runs: what a resumed run finds, whose it is, what is damaged, and who writes to it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from hexad.core.errors import InputError
from hexad.core.files import alone_in
from hexad.federated.fedswa import FedMoSWA, FedSWA, RoundSchedule, Scaffold
from hexad.federated.fedswa.memory import load_memory
from hexad.federated.fedswa.server_run import ServerRun
from hexad.federated.fedswa.simulation import Simulation, simulate
from hexad.federated.fedswa.tensor_files import read_arrays, write_arrays
from hexad.federated.flower import InProcessGrid

from .conftest import CLIENTS, make_linear, numpy_of

SILENT = {"fraction_evaluate": 0.0}
OPTIONS = {"lr": 0.1, "local_steps": 2, "seed": 5, **SILENT}


def start(strategy, grid, rounds, **more):
    return strategy.start(grid, ArrayRecord(make_linear().state_dict()), num_rounds=rounds, **more)


def settle(folder, name, change):
    """Rewrite the note of a checkpoint."""
    path = folder / name
    with safe_open(path, framework="numpy") as file:
        note = json.loads(file.metadata()["hexad"])
    change(note)
    save_file(load_file(path), path, metadata={"hexad": json.dumps(note)})


@pytest.mark.parametrize("kind", [FedMoSWA, Scaffold])
@pytest.mark.parametrize("fraction", [0.5, 1.0])
@pytest.mark.parametrize("every", [1, 3])
def test_clients_keep_what_any_checkpoint_may_ask_for(federation, tmp_path, kind, fraction, every):
    """The server is killed at round 8 with checkpoints of 3 and 6 (or 6 and 7); the newer one is damaged."""

    def play(rounds, folder, dies=None):
        strategy = kind(
            fraction_train=fraction, checkpoints=folder / "server", checkpoint_every=every, **OPTIONS
        )
        grid = federation(make_linear, folder=folder / "clients")
        if dies:  # as a kill would, without the save at the end
            save = ServerRun._save
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ServerRun, "_save", lambda run, at_once=False: at_once or save(run))

                def evaluate(number, arrays):
                    if number == dies:
                        raise KeyboardInterrupt

                with pytest.raises(KeyboardInterrupt):
                    start(strategy, grid, rounds, evaluate_fn=evaluate)
            return None, None
        return numpy_of(start(strategy, grid, rounds).arrays), strategy.m

    whole, m = play(10, tmp_path / "whole")
    play(10, tmp_path / "parts", dies=8)
    newest = sorted((tmp_path / "parts" / "server").glob("round-*"))[-1]
    newest.write_bytes(b"half of a file")
    with pytest.warns(UserWarning, match="is damaged; set aside as round-00000"):
        rest, other = play(10, tmp_path / "parts")
    for name in whole:
        np.testing.assert_array_equal(rest[name], whole[name])
        np.testing.assert_array_equal(other[name], m[name])
    files = list((tmp_path / "parts" / "clients").iterdir())
    assert max(len(load_memory(path).versions) for path in files) <= 4  # however many rounds there were


def test_an_interrupted_run_saves_its_last_round_whatever_the_pace(federation, tmp_path):
    strategy = FedMoSWA(checkpoints=tmp_path, checkpoint_every=100, **OPTIONS)

    def evaluate(number, arrays):
        if number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(strategy, federation(make_linear), 9, evaluate_fn=evaluate)
    assert [path.name for path in tmp_path.glob("round-*")] == ["round-000003.safetensors"]


def test_variates_of_another_run_are_not_taken_up(federation, tmp_path):
    """A second run over the clients' folder of a first is what it is over an empty one."""

    def play(server, clients, rounds):
        strategy = FedMoSWA(checkpoints=tmp_path / server, **OPTIONS)
        result = start(strategy, federation(make_linear, folder=tmp_path / clients), rounds)
        return numpy_of(result.arrays)

    wanted = play("alone", "fresh", 4)
    play("first", "clients", 2)
    play("second", "clients", 2)  # both runs now count round 2 of every client
    with pytest.warns(UserWarning, match="6 of 6 clients no longer had their control variates"):
        play("first", "clients", 3)  # the second's are there in place of the first's
    np.testing.assert_array_equal(play("third", "clients", 4)["weight"], wanted["weight"])


def test_forgotten_variates_are_told_and_begin_at_zero(federation, tmp_path):
    start(FedMoSWA(checkpoints=tmp_path, **OPTIONS), federation(make_linear), 2)
    with pytest.warns(UserWarning, match=r"round 3: 6 of 6 clients .*give ControlVariates a folder"):
        start(FedMoSWA(checkpoints=tmp_path, **OPTIONS), federation(make_linear), 3)


@pytest.mark.parametrize("seed", [None, 5])
def test_nodes_may_have_new_ids_after_a_restart(federation, tmp_path, seed):
    """Partitions are who clients are: ids 2 to 7 become 102 to 107, in another order of partitions."""

    def play(rounds, folder, ids=None):
        strategy = Scaffold(checkpoints=folder / "server", **OPTIONS | {"seed": seed})
        grid = federation(make_linear, folder=folder / "clients")
        if ids is not None:
            configs = [{"partition-id": (i * 5) % CLIENTS, "num-partitions": CLIENTS} for i in range(CLIENTS)]
            grid = InProcessGrid(dict.fromkeys(ids, grid._apps[2]), configs)
        return numpy_of(start(strategy, grid, rounds).arrays), strategy.m

    whole, m = play(6, tmp_path / "whole")
    play(3, tmp_path / "parts")
    rest, other = play(6, tmp_path / "parts", ids=range(102, 102 + CLIENTS))
    for name in whole:  # the order of sums is another one
        np.testing.assert_allclose(rest[name], whole[name], atol=1e-6)
        np.testing.assert_allclose(other[name], m[name], atol=1e-6)


def test_two_nodes_of_one_partition_are_refused(federation):
    app = federation(make_linear)._apps[2]
    grid = InProcessGrid({2: app, 3: app}, [{"partition-id": 1}, {"partition-id": 1}])
    with pytest.raises(InputError, match="it is of partition 1, as is that of node"):
        start(FedMoSWA(**OPTIONS), grid, 1)


def test_damaged_folders_are_refused_and_left_alone(federation, tmp_path):
    def play(rounds=3):
        start(FedMoSWA(checkpoints=tmp_path, **OPTIONS), federation(make_linear), rounds)

    own = tmp_path / "round-final.safetensors"
    own.write_bytes(b"the user's")
    play()
    assert own.read_bytes() == b"the user's"
    for path in tmp_path.glob("round-0*"):
        settle(tmp_path, path.name, lambda note: note.pop("settings"))
    with pytest.raises(
        InputError, match=r"no checkpoint in .* is whole \(round-000003.* delete them"
    ) as caught:
        play()
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*.damaged"))
    for path in tmp_path.glob("round-0*"):
        path.write_bytes(b"")
    with pytest.raises(InputError, match=r"no checkpoint in .* is whole"):
        play()


def test_one_run_at_a_time_has_a_folder(federation, tmp_path):
    with (
        alone_in(tmp_path / "run", "checkpoints"),
        pytest.raises(InputError, match=r"another run is writing to .*; wait for it"),
    ):
        start(FedSWA(checkpoints=tmp_path / "run", **OPTIONS), federation(make_linear), 1)
    start(FedSWA(checkpoints=tmp_path / "run", **OPTIONS), federation(make_linear), 1)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"checkpoints .* is a file"):
        start(FedSWA(checkpoints=tmp_path / "file", **OPTIONS), federation(make_linear), 1)


def test_fewer_rounds_than_are_done_are_refused(federation, tmp_path):
    start(FedSWA(checkpoints=tmp_path, **OPTIONS), federation(make_linear), 3)
    with pytest.raises(InputError, match=r"holds 3 rounds, more than the 2 asked for; ask for at least 3"):
        start(FedSWA(checkpoints=tmp_path, **OPTIONS), federation(make_linear), 2)


def test_the_rate_of_train_config_is_a_setting(federation, tmp_path):
    def play(lr, rounds):
        strategy = FedSWA(checkpoints=tmp_path, **OPTIONS | {"lr": None})
        start(strategy, federation(make_linear), rounds, train_config=ConfigRecord({"lr": lr}))

    play(0.1, 1)
    play(0.1, 2)
    with pytest.raises(InputError, match=r"other settings \(lr 0\.1 -> 0\.2\)"):
        play(0.2, 3)


def test_a_cosine_of_other_length_is_another_run(federation, tmp_path):
    options = OPTIONS | {"schedule": RoundSchedule("cosine"), "checkpoints": tmp_path}
    start(FedSWA(**options), federation(make_linear), 2)
    with pytest.raises(InputError, match=r"other settings \(rounds 2 -> 4\)"):
        start(FedSWA(**options), federation(make_linear), 4)


PLAN = Simulation(clients=8, fraction=0.5, alpha=0.5, rounds=3, local_steps=2, evaluate_every=2)


def test_a_damaged_history_is_one_line(tmp_path):
    simulate(PLAN, tmp_path)
    path = tmp_path / "history.json"
    whole = json.loads(path.read_text())
    rows = [whole["rows"][0] | {"accuracy": "x"}]
    for text in (
        "{",
        "[]",
        json.dumps({"done": 3}),
        json.dumps(whole | {"rows": [1]}),
        json.dumps(whole | {"rows": rows}),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=r"history\.json is damaged; delete it") as caught:
            simulate(PLAN, tmp_path)
        assert "\n" not in str(caught.value)
        assert path.read_text() == text
    path.unlink()
    heard = []
    with pytest.warns(UserWarning, match=r"no history\.json; history and traffic begin at round 3"):
        run = simulate(replace(PLAN, rounds=4), tmp_path, progress=lambda share, note: heard.append(note))
    assert [row["round"] for row in run.history] == [4]
    assert heard[0] == "round 3"  # nothing was tested yet


def test_a_flipped_bit_is_damage(tmp_path):
    path = tmp_path / "state.safetensors"
    arrays = {"w": np.arange(5, dtype=np.float32), "n": np.array(3)}
    write_arrays(path, arrays, {"done": 1})
    read, note = read_arrays(path)
    assert note == {"done": 1}
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    assert read_arrays(path) is None


def test_a_shorter_simulation_leaves_history_and_model(tmp_path):
    simulate(PLAN, tmp_path)
    before = (tmp_path / "history.json").read_bytes()
    with pytest.raises(InputError, match="holds 3 rounds, more than the 2"):
        simulate(replace(PLAN, rounds=2), tmp_path)
    assert (tmp_path / "history.json").read_bytes() == before
