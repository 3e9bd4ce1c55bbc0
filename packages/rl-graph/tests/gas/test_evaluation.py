"""Success in the simulator: a controller that knows the way, and starts that repeat."""

import numpy as np
import pytest

from hexad.core.errors import InputError
from hexad.rl_graph.gas.evaluation import evaluate
from hexad.rl_graph.gas.graph import StitchGraph
from hexad.rl_graph.gas.mazes import generate_pointmaze
from hexad.rl_graph.gas.navigation import Navigator

SCALE = 5.0
"""A full action takes the point 0.2: five times the position is the time to go there in the open."""


def straight(goals):
    def act(observations):
        away = goals - observations
        return away / np.linalg.norm(away, axis=1, keepdims=True)

    return act


def test_perfect_control_on_a_stitched_graph_reaches_what_straight_lines_do_not():
    """The plumbing alone: positions as the embedding, the direction itself as the action."""
    data = generate_pointmaze("medium", "stitch", 150, seed=0)
    graph = StitchGraph.build(data.observations * SCALE, data.ends, 8.0, 0.9)

    def start(goals):
        navigator = Navigator(graph, lambda observations: observations * SCALE, goals)

        def act(observations):
            way = navigator.update(observations)
            return way / np.maximum(np.linalg.norm(way, axis=1, keepdims=True), 1e-9)

        return act

    found = evaluate(start, "pointmaze-medium-v0", episodes=2, max_steps=400, seed=1)
    assert found.by_task() == {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0, 5: 1.0}
    without = evaluate(straight, "pointmaze-medium-v0", episodes=2, max_steps=400, seed=1)
    assert without.success.mean() <= 0.5
    assert (found.goals == without.goals).all(), "the same starts and goals for all that is compared"
    assert (found.traces[0] == without.traces[0]).all()
    assert found.steps.max() < 400
    assert (without.steps[~without.success] == 400).all()


def test_an_episode_ends_at_its_goal_and_counts_its_moves():
    found = evaluate(straight, "pointmaze-medium-v0", tasks=[3], episodes=2, max_steps=60, seed=0)
    assert found.traces.shape[1:] == (2, 2)
    for episode, steps in enumerate(found.steps):
        last = found.traces[steps, episode]
        assert (found.traces[steps:, episode] == last).all()
        near = np.linalg.norm(found.traces[: steps + 1, episode] - found.goals[episode], axis=1) <= 1.0
        assert found.success[episode] == near[-1]
        assert not near[1:-1].any()


def test_seeds_repeat_and_differ_and_leave_numpys_generator_alone():
    np.random.seed(5)  # noqa: NPY002
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    first = evaluate(straight, "pointmaze-medium-v0", tasks=[1, 2], episodes=2, max_steps=3, seed=7)
    assert np.random.random() == expected  # noqa: NPY002
    again = evaluate(straight, "pointmaze-medium-v0", tasks=[1, 2], episodes=2, max_steps=3, seed=7)
    assert (first.traces == again.traces).all()
    assert len(np.unique(first.goals, axis=0)) == 4, "every episode has a start and a goal of its own"
    other = evaluate(straight, "pointmaze-medium-v0", tasks=[1, 2], episodes=2, max_steps=3, seed=8)
    assert (first.goals != other.goals).any()


def test_bad_input_is_refused():
    for options, message in (
        ({"env": "pointmaze-none-v0"}, "unknown environment"),
        ({"tasks": [6]}, "has tasks 1 to 5"),
        ({"tasks": [0]}, "task"),
        ({"tasks": []}, "tasks is empty"),
        ({"episodes": 0}, "episodes"),
        ({"max_steps": 0}, "max_steps"),
        ({"env": "CartPole-v1"}, r"gives no info\['goal'\]"),
    ):
        given = {"env": "pointmaze-medium-v0", "episodes": 1, "max_steps": 2} | options
        with pytest.raises(InputError, match=message):
            evaluate(straight, given.pop("env"), **given)
