"""Following the graph: which node is taken, which is the sub-goal, and when the goal is."""

import numpy as np
import pytest
from scipy import sparse

from hexad.core.errors import InputError
from hexad.rl_graph.gas.graph import StitchGraph, join_nodes
from hexad.rl_graph.gas.navigation import Navigator


def corridor(spacing=1.0, count=11, horizon=2.5):
    """Nodes on a line in the plane: 0, 1, ... 10."""
    nodes = np.stack([np.arange(count) * spacing, np.zeros(count)], 1)
    weights, _ = join_nodes(nodes, horizon)
    return StitchGraph(nodes, weights, horizon, -1.0, "", 1.0, np.ones(count, int))


def at(*xy):
    return np.array([xy], float)


def test_the_subgoal_is_the_farthest_node_of_the_path_in_reach():
    navigator = Navigator(corridor(), np.asarray, at(10, 0))
    direction = navigator.update(at(0, 0.1))
    assert navigator.subgoals.tolist() == [[2.0, 0.0]], "node 1 is the next on no path, node 3 out of reach"
    assert direction.tolist() == [[2.0, -0.1]]
    assert not navigator.latched[0]


def test_the_node_taken_has_the_shortest_way_not_the_nearest_place():
    # A wall: from 0 the goal at (0, 4) is near, but the graph goes round by x = 10.
    nodes = np.array([[0.0, 0], [2, 0], [4, 0], [6, 0], [6, 2], [6, 4], [4, 4], [2, 4], [0, 4]])
    graph = StitchGraph(nodes, join_nodes(nodes, 2.0)[0], 2.0, -1.0, "", 1.0, np.ones(9, int))
    navigator = Navigator(graph, np.asarray, at(0, 4.5))
    navigator.update(at(0.9, 0.0))
    assert navigator.subgoals[0].tolist() == [2.0, 0.0]
    assert navigator.path(0) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_near_the_goal_it_latches_for_the_rest_of_the_episode():
    navigator = Navigator(corridor(), np.asarray, at(10.5, 0))
    navigator.update(at(9.6, 0))
    assert navigator.latched[0]
    assert navigator.subgoals.tolist() == [[10.5, 0.0]]
    navigator.update(at(2, 0))
    assert navigator.subgoals.tolist() == [[10.5, 0.0]], "even if it is carried away"


def test_a_goal_in_reach_is_the_farthest_of_its_path():
    graph = corridor(horizon=2.5)
    navigator = Navigator(graph, np.asarray, at(6, 0), latch=1)
    navigator.update(at(4, 0))
    assert not navigator.latched[0], "a latch of 1 waits for a path of the goal alone, which never comes"
    assert navigator.subgoals.tolist() == [[6.0, 0.0]]


def test_out_of_reach_it_takes_the_nearest_node_first_and_keeps_its_path_later():
    navigator = Navigator(corridor(), np.asarray, at(10, 0))
    navigator.update(at(0, 50))
    assert navigator.subgoals.tolist() == [[0.0, 0.0]], "the nearest node, and none of its path in reach"
    navigator = Navigator(corridor(), np.asarray, at(10, 0))
    navigator.update(at(3, 0))
    path = navigator.path(0)
    navigator.update(at(7, 50))
    assert navigator.path(0) == path
    assert navigator.subgoals[0].tolist() == [float(path[0]), 0.0]


def test_many_episodes_are_as_if_alone():
    rng = np.random.default_rng(0)
    nodes = rng.uniform(0, 10, (60, 2))
    graph = StitchGraph(nodes, join_nodes(nodes, 2.0)[0], 2.0, -1.0, "", 1.0, np.ones(60, int))
    goals, walks = rng.uniform(0, 10, (5, 2)), rng.uniform(-1, 11, (20, 5, 2))
    goals[4] = goals[0]
    together = Navigator(graph, np.asarray, goals)
    alone = [Navigator(graph, np.asarray, goal[None]) for goal in goals]
    assert together.trees[4] is together.trees[0], "one tree a goal"
    for observations in walks:
        found = together.update(observations)
        expected = [one.update(here[None])[0] for one, here in zip(alone, observations, strict=True)]
        assert found == pytest.approx(np.stack(expected), abs=1e-12)


def test_without_a_graph_it_heads_for_the_goal():
    navigator = Navigator(None, np.asarray, at(3, 4))
    assert navigator.update(at(1, 1)).tolist() == [[2.0, 3.0]]
    assert navigator.latched.all()
    assert navigator.path(0) == []


def test_the_number_of_observations_must_fit():
    navigator = Navigator(corridor(), np.asarray, at(3, 4))
    with pytest.raises(InputError, match="give one each"):
        navigator.update(np.zeros((2, 2)))
    assert sparse.issparse(corridor().weights)
