"""A run's folder after its settings changed: what goes on, what begins anew, what is refused untouched."""

import json
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest
from gas_chains import line, tiny_config
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from hexad.core.errors import InputError
from hexad.rl_graph.gas.agent import GAS
from hexad.rl_graph.gas.saving import load_policy

OBS, GOAL = np.array([0.1, 0.2]), np.array([1.0, 1.5])
PARTS = ("temporal.safetensors", "graph.npz", "policy.safetensors", "agent.json")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    GAS(tiny_config()).fit(line(), folder=folder)
    return folder


@pytest.fixture
def run(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def longer(steps=6, **changes):
    config = tiny_config(**changes)
    fit = replace(config.temporal.fit, steps=steps)
    return replace(config, temporal=replace(config.temporal, fit=fit))


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_longer_trained_embedding_makes_graph_and_policy_anew(run, tmp_path):
    with pytest.warns(
        UserWarning, match=r"changed: graph\.npz, policy\.safetensors, the policy's checkpoints"
    ):
        agent = GAS(longer()).fit(line(), folder=run)
    fresh = GAS(longer()).fit(line(), folder=tmp_path / "fresh")
    other = GAS.load(run)
    assert other.temporal_.digest == fresh.temporal_.digest != GAS(tiny_config()).fit(line()).temporal_.digest
    for one in (agent, other):
        assert (one.predict(OBS, GOAL) == fresh.predict(OBS, GOAL)).all()


def test_ctrl_c_while_training_longer_keeps_the_old_agent_then_goes_on(run, tmp_path):
    old = GAS.load(run).predict(OBS, GOAL)

    def stop_in(wanted):
        def stop(stage, fraction, note):
            if stage == wanted:
                raise KeyboardInterrupt

        return stop

    with pytest.raises(KeyboardInterrupt):
        GAS(longer()).fit(line(), folder=run, progress=stop_in("tdr"))
    assert (GAS.load(run).predict(OBS, GOAL) == old).all()
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="changed"):
        GAS(longer()).fit(line(), folder=run, progress=stop_in("policy"))
    with pytest.raises(InputError, match=r"has no policy\.safetensors"):
        GAS.load(run)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GAS(longer()).fit(line(), folder=run)
    fresh = GAS(longer()).fit(line(), folder=tmp_path / "fresh")
    assert (GAS.load(run).predict(OBS, GOAL) == fresh.predict(OBS, GOAL)).all()


def test_another_horizon_is_for_a_new_embedding_or_another_folder(run):
    before = contents(run)
    for stages in (("tdr", "graph", "policy"), ("graph",), ("policy",)):
        with pytest.raises(InputError, match=r"made with horizon 0\.5, not 0\.7"):
            GAS(tiny_config(horizon=0.7)).fit(line(), folder=run, stages=stages)
    assert contents(run) == before
    with pytest.warns(UserWarning, match="changed"):
        GAS(longer(horizon=0.7)).fit(line(), folder=run)
    agent = GAS.load(run)
    assert agent.config.horizon == agent.graph_.horizon == agent.policy_.horizon == 0.7
    agent.predict(OBS, GOAL)


def test_settings_and_data_that_may_not_change_are_refused_untouched(run):
    config, before = tiny_config(te_threshold=-0.5), contents(run)
    for changed, data, stages, message in (
        (replace(config, policy=replace(config.policy, alpha=3.0)), line(), None, r"alpha: 1\.0 -> 3\.0"),
        (
            replace(config, policy=replace(config.policy, fit=replace(config.policy.fit, steps=2))),
            line(),
            None,
            "3 steps old, more than the 2",
        ),
        (config, line(seed=3), None, "holds a run of other data"),
        (config, line(seed=3), ("graph",), "trained on other data"),
        (replace(config, temporal=replace(config.temporal, gamma=0.9)), line(), None, "gamma"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            GAS(changed).fit(data, folder=run, **({"stages": stages} if stages else {}))
        assert "\n" not in str(caught.value)
        assert contents(run) == before


def test_another_threshold_makes_another_graph_beside_the_same_policy(run):
    GAS(tiny_config(te_threshold=-0.5)).fit(line(), folder=run, stages=("graph",))
    assert GAS.load(run).config.te_threshold == -0.5
    GAS(tiny_config(te_threshold=0.0)).fit(line(), folder=run, stages=("policy",))
    assert GAS.load(run).config.te_threshold == -0.5, "the policy's stage does not change the graph's setting"


def test_parts_that_do_not_agree_are_not_loaded(run):
    whole = json.loads((run / "agent.json").read_text())
    for name, value, message in (
        ("format", "hexad.gas/1", "has format 'hexad.gas/1'"),
        ("horizon", 0.7, r"made with horizon 0\.7, graph\.npz with 0\.5"),
        ("te_threshold", 0.3, r"has te_threshold 0\.3"),
        ("embedding", "abc", r"another embedding \(abc\)"),
    ):
        (run / "agent.json").write_text(json.dumps(whole | {name: value}))
        with pytest.raises(InputError, match=message):
            GAS.load(run)


def test_weights_that_changed_on_disk_are_refused(run):
    path = run / "policy.safetensors"
    with safe_open(path, framework="np") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    tensors["networks.actor.biases.0"][0, 0, 0] += 1
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(InputError, match="its weights are not those that were saved"):
        load_policy(path)


def test_in_memory_later_stages_go_with_their_embedding():
    agent = GAS(tiny_config()).fit(line())
    agent.fit(line(), stages=("tdr",))
    agent.predict(OBS, GOAL)
    agent.fit(line(seed=3), stages=("tdr",))
    assert agent.graph_ is None
    assert agent.policy_ is None
    with pytest.raises(InputError, match="not fitted in all stages"):
        agent.predict(OBS, GOAL)
    with pytest.raises(InputError, match="trained on other data"):
        agent.fit(line(), stages=("graph", "policy"))


def test_predict_refuses_parts_that_do_not_belong_together():
    agent, other = GAS(tiny_config()).fit(line()), GAS(tiny_config()).fit(line(seed=3))
    agent.temporal_ = other.temporal_
    with pytest.raises(InputError, match="graph was made with another embedding"):
        agent.predict(OBS, GOAL)
    with pytest.raises(InputError, match="another embedding"):
        agent.straight_controller(GOAL[None])
    wide = GAS(tiny_config(horizon=0.7)).fit(line(seed=3))
    other.graph_ = wide.graph_
    with pytest.raises(InputError, match=r"horizon 0\.7 and the policy with 0\.5"):
        other.predict(OBS, GOAL)


def test_constant_observations_are_refused(tmp_path):
    data = line()
    with pytest.raises(InputError, match="all observations of line are the same"):
        GAS(tiny_config()).fit(replace(data, observations=np.ones((21, 2))), folder=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_run_without_a_graph_goes_straight(run):
    (run / "graph.npz").unlink()
    assert GAS.load_without_graph(run).straight_controller(GOAL[None])(OBS[None]).shape == (1, 2)
