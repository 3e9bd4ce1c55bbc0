"""The baseline: it imitates what leads to a goal."""

import numpy as np
import pytest
from gas_chains import line

from hexad.core.errors import InputError
from hexad.rl_graph.gas.fitting import FitConfig
from hexad.rl_graph.gas.goal_cloning import CloningConfig, GoalCloning
from hexad.rl_graph.gas.trajectories import Trajectories


def test_it_goes_towards_goals_of_its_data():
    rng = np.random.default_rng(0)
    ways = rng.choice([-1.0, 1.0], 60)
    actions = np.repeat(ways, 20)[:, None] * 0.5
    states = (np.arange(20)[None] * ways[:, None]).reshape(-1, 1) * 0.5
    data = Trajectories(states, actions, np.tile(np.arange(20) == 19, 60))
    fit = FitConfig(400, 64, 3e-3, accelerator="cpu")
    cloning = GoalCloning(1, 1, CloningConfig((32, 32), 0.9, fit)).fit(data)
    act = cloning.controller(np.array([[8.0], [-8.0]]))
    right, left = act(np.zeros((2, 1)))[:, 0]
    assert right == pytest.approx(0.5, abs=0.15)
    assert left == pytest.approx(-0.5, abs=0.15)


def test_bad_input_is_refused():
    cloning = GoalCloning(2, 2, CloningConfig((4,), fit=FitConfig(1, 4)))
    with pytest.raises(InputError, match="the policy is for"):
        cloning.fit(line(dim=3))
    with pytest.raises(InputError, match="must be as many"):
        cloning.act(np.zeros((2, 2)), np.zeros((1, 2)))
    with pytest.raises(InputError, match="gamma"):
        CloningConfig(gamma=1.0)
