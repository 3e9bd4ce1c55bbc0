"""OGBench's and Minari's files as their own libraries write them."""

import h5py
import numpy as np
import pytest

from hexad.core.errors import InputError
from hexad.rl_graph.gas.readers import (
    from_minari,
    load_ogbench_npz,
    read_trajectories,
    write_ogbench_npz,
)

OBS = np.arange(14.0).reshape(7, 2)
ACT = np.linspace(-1, 1, 7)[:, None]
ENDS = np.array([0, 0, 1, 0, 0, 0, 1], float)


def test_compact_and_transitions_are_the_same_data(tmp_path):
    np.savez(tmp_path / "compact.npz", observations=OBS, actions=ACT, terminals=ENDS)
    compact = load_ogbench_npz(tmp_path / "compact.npz")
    keep = ENDS == 0
    after = np.roll(OBS, -1, axis=0)[keep]
    ends = np.roll(ENDS, -1)[keep]
    np.savez(
        tmp_path / "full.npz",
        observations=OBS[keep],
        next_observations=after,
        actions=ACT[keep],
        terminals=ends,
    )
    full = load_ogbench_npz(tmp_path / "full.npz")
    assert (full.observations == compact.observations).all()
    assert (full.terminals == compact.terminals).all()
    assert (full.actions == compact.actions).all()
    assert full.digest == compact.digest
    write_ogbench_npz(tmp_path / "again.npz", compact)
    assert read_trajectories(tmp_path / "again.npz").digest == compact.digest


def test_ogbench_itself_reads_what_is_written(tmp_path):
    ogbench = pytest.importorskip("ogbench")
    np.savez(tmp_path / "data.npz", observations=OBS, actions=ACT, terminals=ENDS)
    write_ogbench_npz(tmp_path / "own.npz", load_ogbench_npz(tmp_path / "data.npz"))
    theirs = ogbench.load_dataset(tmp_path / "own.npz")
    np.savez(tmp_path / "theirs.npz", **theirs)
    assert load_ogbench_npz(tmp_path / "theirs.npz").digest == load_ogbench_npz(tmp_path / "own.npz").digest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"terminals": None}, "lacks terminals; it holds actions, observations"),
        ({"terminals": ENDS[::-1]}, "do not mark the last state"),
        ({"next_observations": OBS + 1}, "next_observations 0"),
        ({"next_observations": OBS[:3]}, "they must have one shape"),
        ({"observations": OBS.astype(object)}, "cannot be read as .npz"),
    ],
)
def test_bad_npz_is_refused(tmp_path, changes, message):
    content = {"observations": OBS, "actions": ACT, "terminals": ENDS} | changes
    np.savez(tmp_path / "bad.npz", **{name: array for name, array in content.items() if array is not None})
    with pytest.raises(InputError, match=message):
        read_trajectories(tmp_path / "bad.npz")


def test_other_files_are_refused(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"nothing")
    (tmp_path / "a.hdf5").write_bytes(b"nothing")
    (tmp_path / "a.csv").write_text("x")
    for name, message in {
        "a.npz": "cannot be read as .npz",
        "a.hdf5": "cannot be read as HDF5",
        "a.csv": "of no known kind",
        "b.npz": "does not exist",
    }.items():
        with pytest.raises(InputError, match=message):
            read_trajectories(tmp_path / name)
    with pytest.raises(InputError, match="nothing is downloaded"):
        from_minari("D4RL/none-v0")


def write_minari(path, episodes, **flags):
    """A file as Minari lays it out; `episodes` are (observations, actions)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for number, (observations, actions) in enumerate(episodes):
            group = file.create_group(f"episode_{number}")
            if isinstance(observations, dict):
                for name, values in observations.items():
                    group.create_dataset(f"observations/{name}", data=values)
            else:
                group["observations"] = observations
            group["actions"] = actions
            ends = np.zeros(len(actions), bool)
            group["terminations"] = flags.get("terminations", ends)
            ends = ends.copy()
            ends[-1] = True
            group["truncations"] = flags.get("truncations", ends)


def test_minari_episodes_in_the_order_of_their_numbers(tmp_path, monkeypatch):
    episodes = [(np.full((3 + k, 2), float(k)), np.zeros((2 + k, 1))) for k in range(12)]
    path = tmp_path / "maze/demo-v0/data/main_data.hdf5"
    write_minari(path, episodes)
    data = from_minari(path)
    assert data.observations[data.last_states, 0].tolist() == list(range(12))
    assert np.diff(np.concatenate([[-1], data.last_states])).tolist() == list(range(3, 15))
    assert from_minari(tmp_path / "maze/demo-v0").digest == data.digest
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    assert read_trajectories(
        "maze/demo-v0/data/main_data.hdf5".replace("maze", str(tmp_path / "maze"))
    ).digest
    assert from_minari("maze/demo-v0").digest == data.digest


def test_dictionary_observations_are_named(tmp_path):
    states = {"observation": np.ones((3, 4)), "achieved_goal": np.zeros((3, 2))}
    write_minari(tmp_path / "a.hdf5", [(states, np.zeros((2, 1)))])
    with pytest.raises(InputError, match="a dictionary of achieved_goal, observation; name the one"):
        read_trajectories(tmp_path / "a.hdf5")
    assert read_trajectories(tmp_path / "a.hdf5", observation_key="observation").obs_dim == 4
    write_minari(tmp_path / "b.hdf5", [(np.ones((3, 4)), np.zeros((2, 1)))])
    with pytest.raises(InputError, match="leave observation_key out"):
        read_trajectories(tmp_path / "b.hdf5", observation_key="observation")


@pytest.mark.parametrize(
    ("episode", "flags", "message"),
    [
        ((np.ones((2, 4)), np.zeros((2, 1))), {}, "one more observation than actions"),
        (
            (np.ones((3, 4)), np.zeros((2, 1))),
            {"truncations": np.zeros(2, bool)},
            "truncated at its last step",
        ),
        ((np.ones((3, 4)), np.zeros((2, 1))), {"terminations": np.ones(2, bool)}, "and only there"),
        ((np.ones((3, 4, 4)), np.zeros((2, 1))), {}, "both must be"),
    ],
)
def test_bad_episodes_are_refused(tmp_path, episode, flags, message):
    write_minari(tmp_path / "a.hdf5", [episode], **flags)
    with pytest.raises(InputError, match=message):
        from_minari(tmp_path / "a.hdf5")
