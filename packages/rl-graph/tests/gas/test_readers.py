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
            ends[-1:] = True
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


def transitions(offset=0.0, scale=1.0, jump=None):
    """Two trajectories of three transitions each, the second number offset and scaled."""
    rng = np.random.default_rng(0)
    walks = np.cumsum(rng.normal(size=(2, 4, 2)), axis=1) * [1, scale] + [0, offset]
    before, after = walks[:, :-1].reshape(-1, 2), walks[:, 1:].reshape(-1, 2)
    if jump is not None:
        after[1, 1] += jump
    return {
        "observations": before,
        "next_observations": after,
        "actions": np.zeros((6, 1)),
        "terminals": np.array([0, 0, 1, 0, 0, 1]),
    }


def test_successors_are_compared_in_the_scale_of_their_own_number(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, **transitions(offset=5e6))
    assert len(load_ogbench_npz(path)) == 8
    small = transitions(offset=5e6)
    np.savez(path, **small | {"next_observations": small["next_observations"].astype(np.float32)})
    assert len(load_ogbench_npz(path)) == 8, "the rounding of float32 is no jump"
    np.savez(path, **transitions(offset=5e6, jump=3.0))
    with pytest.raises(InputError, match="next_observations 1 of"):
        load_ogbench_npz(path)


def test_every_transition_may_be_a_trajectory(tmp_path):
    np.savez(tmp_path / "a.npz", **transitions() | {"terminals": np.ones(6)})
    data = load_ogbench_npz(tmp_path / "a.npz")
    assert data.last_states.tolist() == [1, 3, 5, 7, 9, 11]


@pytest.mark.parametrize("value", [2, -1, 0.5])
def test_ends_of_transitions_are_0_and_1(tmp_path, value):
    np.savez(tmp_path / "a.npz", **transitions() | {"terminals": np.array([0, 0, 1, 0, 0, value])})
    with pytest.raises(InputError, match=r"terminals of .* must be 6 values of 0 and 1"):
        load_ogbench_npz(tmp_path / "a.npz")


def test_timeouts_end_trajectories_too(tmp_path):
    path, late = tmp_path / "a.npz", np.array([0, 0, 0, 0, 0, 0, 1])
    np.savez(path, observations=OBS, actions=ACT, terminals=ENDS - late, timeouts=late)
    assert load_ogbench_npz(path).last_states.tolist() == [2, 6]
    full = transitions() | {
        "terminals": np.array([0, 0, 1, 0, 0, 0]),
        "timeouts": np.array([0, 0, 0, 0, 0, 1]),
    }
    np.savez(path, **full)
    assert load_ogbench_npz(path).last_states.tolist() == [3, 7]
    np.savez(path, observations=OBS, actions=ACT, terminals=ENDS, timeouts=late * 2)
    with pytest.raises(InputError, match=r"timeouts of .* must be 7 values"):
        load_ogbench_npz(path)


def test_ogbench_s_compact_form_in_memory(tmp_path):
    valids = np.array([1, 1, 0, 1, 1, 1, 0])
    np.savez(
        tmp_path / "a.npz", observations=OBS, actions=ACT, terminals=[0, 1, 1, 0, 0, 1, 1], valids=valids
    )
    assert load_ogbench_npz(tmp_path / "a.npz").last_states.tolist() == [2, 6]


def test_a_large_file_of_one_trajectory_is_asked_about(tmp_path):
    states, ends = np.random.default_rng(0).normal(size=(6000, 2)), np.arange(6000) == 5999
    np.savez(tmp_path / "a.npz", observations=states, actions=np.zeros((6000, 1)), terminals=ends)
    with pytest.warns(UserWarning, match="all 6,000 states of .* are one trajectory"):
        load_ogbench_npz(tmp_path / "a.npz")


def test_damage_inside_an_npz_is_one_line(tmp_path):
    path = tmp_path / "a.npz"
    states = np.random.default_rng(0).normal(size=(500, 2))
    np.savez_compressed(path, observations=states, actions=states, terminals=np.arange(500) == 499)
    whole = bytearray(path.read_bytes())
    refused = []
    for place in range(40, len(whole) - 400, 97):
        damaged = whole.copy()
        damaged[place : place + 8] = b"\xff" * 8
        path.write_bytes(damaged)
        try:
            read_trajectories(path)
        except InputError as error:
            refused.append(str(error))
    assert len(refused) > 50
    assert not any("\n" in said for said in refused)
    (tmp_path / "text.npz").write_text("x,y\n1,2\n")
    with pytest.raises(InputError, match="it is no zip archive"):
        read_trajectories(tmp_path / "text.npz")


def test_d4rl_files_are_named(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name in ("observations", "actions", "terminals", "timeouts"):
            file[name] = np.zeros((3, 1))
    with pytest.raises(InputError, match="of D4RL's form"):
        read_trajectories(tmp_path / "a.hdf5")


def test_dictionary_observations_are_named(tmp_path):
    states = {"observation": np.arange(12.0).reshape(3, 4), "achieved_goal": np.zeros((3, 2))}
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
        (
            (np.ones((1, 4)), np.zeros((0, 1))),
            {"truncations": np.zeros(0, bool)},
            "has no steps; leave it out",
        ),
    ],
)
def test_bad_episodes_are_refused(tmp_path, episode, flags, message):
    write_minari(tmp_path / "a.hdf5", [episode], **flags)
    with pytest.raises(InputError, match=message):
        from_minari(tmp_path / "a.hdf5")
