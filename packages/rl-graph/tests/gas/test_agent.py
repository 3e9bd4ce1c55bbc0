"""The agent whole: saved and read again without pickle, resumed, and refused where parts do not fit."""

import json
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest
from gas_chains import line, tiny_config

from hexad.core.errors import InputError
from hexad.rl_graph.gas.agent import GAS, GASConfig
from hexad.rl_graph.gas.policy import PolicyConfig
from hexad.rl_graph.gas.saving import load_graph, load_policy, load_temporal, save_graph
from hexad.rl_graph.gas.temporal import TemporalConfig

OBS, GOAL = np.array([0.1, 0.2]), np.array([1.0, 1.5])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return GAS(tiny_config()).fit(line(), folder=folder), folder


def test_what_is_read_acts_as_what_was_saved(run, tmp_path):
    agent, folder = run
    agent.save(tmp_path / "again")
    for place in (folder, tmp_path / "again"):
        other = GAS.load(place)
        assert (other.predict(OBS, GOAL) == agent.predict(OBS, GOAL)).all()
        assert (other.graph_.nodes == agent.graph_.nodes).all()
        assert (other.graph_.weights != agent.graph_.weights).nnz == 0
        assert (other.graph_.observations == agent.graph_.observations).all()
        assert other.config == agent.config
        assert other.graph_.encoder == other.temporal_.digest


def test_no_file_is_a_pickle(run):
    for path in run[1].rglob("*"):
        if path.suffix in (".npz", ".npy"):
            np.load(path, allow_pickle=False)
        elif path.is_file():
            assert path.suffix in (".json", ".safetensors"), path


def test_predict_keeps_its_path_until_the_goal_changes_or_reset(run):
    agent = GAS.load(run[1])
    agent.predict(OBS, GOAL)
    navigator = agent._navigator
    agent.predict(OBS + 0.1, GOAL)
    assert agent._navigator is navigator
    agent.predict(OBS, GOAL + 1)
    assert agent._navigator is not navigator
    navigator = agent._navigator
    agent.reset()
    agent.predict(OBS, GOAL + 1)
    assert agent._navigator is not navigator


def test_many_episodes_act_as_one_by_one(run):
    agent = GAS.load(run[1])
    goals = np.array([[1.0, 1.5], [-2.0, 0.3]])
    act = agent.controller(goals)
    straight = agent.straight_controller(goals)
    observations = np.array([[0.0, 0.0], [0.5, 0.5]])
    found = act(observations)
    for place in range(2):
        agent.reset()
        assert found[place] == pytest.approx(agent.predict(observations[place], goals[place]), abs=1e-6)
    assert straight(observations).shape == (2, 2)


def test_an_interrupted_fit_goes_on_to_the_same_agent(run, tmp_path):
    def stop(stage, fraction, note):
        if stage == "policy" and fraction > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        GAS(tiny_config()).fit(line(), folder=tmp_path, progress=stop)
    assert (tmp_path / "graph.npz").is_file(), "what is finished is kept"
    before = (tmp_path / "temporal.safetensors").read_bytes()
    resumed = GAS(tiny_config()).fit(line(), folder=tmp_path)
    assert (tmp_path / "temporal.safetensors").read_bytes() == before
    assert (resumed.predict(OBS, GOAL) == run[0].predict(OBS, GOAL)).all()


def test_stages_by_themselves(run, tmp_path):
    with pytest.raises(InputError, match="fit the stage tdr first"):
        GAS(tiny_config()).fit(line(), folder=tmp_path, stages=("graph",))
    for stage in ("tdr", "graph", "policy"):
        GAS(tiny_config()).fit(line(), folder=tmp_path, stages=(stage,))
    assert (GAS.load(tmp_path).predict(OBS, GOAL) == run[0].predict(OBS, GOAL)).all()
    with pytest.raises(InputError, match="stages are"):
        GAS(tiny_config()).fit(line(), stages=())


@pytest.mark.parametrize("name", ["graph.npz", "policy.safetensors"])
def test_parts_of_another_embedding_are_refused(run, tmp_path, name):
    GAS(tiny_config()).fit(line(seed=3), folder=tmp_path)
    shutil.copy(run[1] / name, tmp_path / name)
    with pytest.raises(InputError, match=f"{name} was made with another embedding"):
        GAS.load(tmp_path)


def test_damaged_and_missing_files_are_refused_in_one_line(run, tmp_path):
    shutil.copytree(run[1], tmp_path / "run")
    for name in ("temporal.safetensors", "graph.npz", "policy.safetensors", "agent.json"):
        path = tmp_path / "run" / name
        whole = path.read_bytes()
        for content in (b"nothing", whole[: len(whole) // 2], None):
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content)
            with pytest.raises(InputError) as caught:
                GAS.load(tmp_path / "run")
            assert name in str(caught.value)
            assert "\n" not in str(caught.value)
        path.write_bytes(whole)
    GAS.load(tmp_path / "run")
    with pytest.raises(InputError, match="does not exist"):
        GAS.load(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no file of gas"):
        load_policy(tmp_path / "run" / "temporal.safetensors")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(InputError, match="no graph of gas"):
        load_graph(tmp_path / "other.npz")
    assert load_temporal(run[1] / "temporal.safetensors").digest == run[0].temporal_.digest


def test_damage_inside_a_graph_is_one_line(run, tmp_path):
    path = tmp_path / "graph.npz"
    whole = (run[1] / "graph.npz").read_bytes()
    refused = []
    for place in range(40, len(whole) - 600, 37):
        path.write_bytes(whole[:place] + b"\xff" * 8 + whole[place + 8 :])
        try:
            load_graph(path)
        except InputError as error:
            refused.append(str(error))
    assert len(refused) > 10
    assert not any("\n" in said for said in refused)


def test_files_of_a_newer_format_are_refused(run, tmp_path, monkeypatch):
    monkeypatch.setattr("hexad.rl_graph.gas.saving.FORMAT", "hexad.gas/9")
    save_graph(tmp_path / "graph.npz", run[0].graph_)
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"has format 'hexad\.gas/9'"):
        load_graph(tmp_path / "graph.npz")
    assert json.loads((run[1] / "agent.json").read_text())["format"] == "hexad.gas/2"


def test_short_trajectories_are_kept_with_a_warning():
    with pytest.warns(UserWarning, match="1 of 3 trajectories are shorter than horizon 5; all their states"):
        GAS(tiny_config(horizon=5, te_threshold=-1)).check_lengths(line((12, 9, 4)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GAS(tiny_config(horizon=5, te_threshold=-1)).check_lengths(line((12, 9)))


def test_bad_settings_and_goals_are_refused(run):
    agent = run[0]
    for hidden in ((), 5, (8, 0)):
        for kind in (TemporalConfig, PolicyConfig):
            with pytest.raises(InputError, match="hidden"):
                kind(hidden=hidden)
    for changes, message in (
        ({"te_threshold": 2}, "te_threshold"),
        ({"horizon": 0}, "horizon"),
        ({"latch": 0}, "latch"),
        ({"horizon": 100}, "out of reach: with gamma 0.99 no distance exceeds 100"),
    ):
        with pytest.raises(InputError, match=message):
            GASConfig(TemporalConfig(), **changes)
    with pytest.raises(InputError, match=r"both must be \(obs_dim,\)"):
        agent.predict(OBS, np.zeros(3))
    with pytest.raises(InputError, match=r"must be \(rows, 2\)"):
        agent.predict(np.zeros(3), np.zeros(3))
    with pytest.raises(InputError, match="not fitted"):
        GAS().predict(OBS, GOAL)
    with pytest.raises(InputError, match="nothing is fitted"):
        GAS().save("nowhere")


def test_it_needs_no_simulator():
    code = (
        "import sys\n"
        "for name in ('mujoco', 'ogbench', 'gymnasium', 'h5py', 'networkx', 'imageio'):\n"
        "    sys.modules[name] = None\n"
        "import hexad.rl_graph.gas as gas\n"
        "[getattr(gas, name) for name in gas.__all__]\n"
        "try:\n    gas.make_maze('medium')\n"
        "except ImportError as error:\n    assert 'hexad-rl-graph[ogbench]' in str(error), error\n"
        "else:\n    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
