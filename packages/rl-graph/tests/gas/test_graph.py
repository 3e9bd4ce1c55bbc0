"""The graph: lengths as networkx finds them, one component, goals, and what is refused."""

import itertools

import networkx
import numpy as np
import pytest
from scipy.sparse import csgraph
from scipy.spatial.distance import cdist

from hexad.core.errors import InputError
from hexad.rl_graph.gas import graph as graphs
from hexad.rl_graph.gas.graph import StitchGraph, join_nodes


def islands(seed=0):
    """Trajectories in three places far from each other."""
    rng = np.random.default_rng(seed)
    walks = [place + np.cumsum(rng.normal(0, 0.5, (80, 3)), axis=0) for place in (0, 40, 90)]
    return np.concatenate(walks), np.repeat([79, 159, 239], 80)


@pytest.fixture(scope="module")
def graph():
    latents, ends = islands()
    return StitchGraph.build(latents, ends, 2.0, -1, observations=latents[:, :2])


def test_nodes_within_a_horizon_are_joined_by_their_distance(graph):
    away = cdist(graph.nodes, graph.nodes)
    near = (away <= 2.0) & ~np.eye(len(away), dtype=bool)
    dense = graph.weights.toarray()
    assert dense[near] == pytest.approx(away[near], abs=1e-12)
    assert (dense == dense.T).all()
    assert (dense > 0).sum() - near.sum() == 2 * graph.repairs
    assert graph.edges == (dense > 0).sum() / 2


@pytest.mark.parametrize("block", [5, 1024])
def test_components_are_joined_to_the_first_by_their_nearest_nodes(block, monkeypatch):
    monkeypatch.setattr(graphs, "BLOCK", block)
    # From the component of node 0: {0, 1}, then the nearest outside is 2 (at 9), then 4 (from 3, at 20).
    nodes = np.array([[0.0], [1], [10], [11], [31], [-60]])
    weights, added = join_nodes(nodes, 2.0)
    assert added == 3
    found = {tuple(pair) for pair in np.argwhere(weights.toarray() > 0).tolist()}
    expected = {(0, 1), (2, 3), (1, 2), (3, 4), (0, 5)}
    assert found == expected | {(b, a) for a, b in expected}
    assert csgraph.connected_components(weights, directed=True, connection="strong")[0] == 1


def test_it_is_one_strong_component(graph):
    assert graph.repairs >= 2
    assert csgraph.connected_components(graph.weights, directed=True, connection="strong")[0] == 1


def test_lengths_are_those_of_networkx(graph):
    goal = np.array([41.0, 40, 39])
    tree = graph.tree(goal)
    other = graph.to_networkx()
    away = np.linalg.norm(graph.nodes - goal, axis=1)
    for node in np.flatnonzero(away < max(2.0, 1.2 * away.min())):
        other.add_edge("goal", int(node), weight=away[node])
    lengths, paths = networkx.single_source_dijkstra(other, "goal")
    assert tree.lengths == pytest.approx([lengths[node] for node in range(len(graph.nodes))], abs=1e-9)
    for node in (0, 5, len(graph.nodes) - 1):
        path = tree.path(node)
        assert path[0] == node
        assert path[-1] == len(graph.nodes)
        assert path[:-1] == paths[node][:0:-1], "the same way, from the node to the goal"
        row = tree.paths[node]
        assert row[: len(path)].tolist() == path
        assert (row[len(path) :] == len(graph.nodes)).all()


def test_paths_obey_the_triangle_bound(graph):
    goal = graph.nodes[-1] + 0.1
    tree = graph.tree(goal)
    assert (tree.lengths >= np.linalg.norm(graph.nodes - goal, axis=1) - 1e-9).all()
    row, column = graph.weights.nonzero()
    weight = np.asarray(graph.weights[row, column]).ravel()
    assert (tree.lengths[row] <= weight + tree.lengths[column] + 1e-9).all()


def test_a_goal_far_from_all_is_joined_to_its_nearest_and_one_on_a_node_to_that(graph):
    far = graph.nodes[3] + np.array([0, 0, 500.0])
    tree = graph.tree(far)
    away = np.linalg.norm(graph.nodes - far, axis=1)
    joined = np.flatnonzero(tree.successors == len(graph.nodes))
    assert set(joined) <= set(np.flatnonzero(away < 1.2 * away.min()))
    assert np.isfinite(tree.lengths).all()
    on = graph.tree(graph.nodes[3])
    assert on.lengths[3] == pytest.approx(0, abs=1e-12)
    assert on.successors[3] == len(graph.nodes)


def test_the_shortest_path_between_two_states(graph):
    source, goal = graph.nodes[0] + 0.05, graph.nodes[-1] - 0.05
    path, length = graph.shortest_path(source, goal)
    points = [source, *graph.nodes[path], goal]
    legs = [np.linalg.norm(b - a) for a, b in itertools.pairwise(points)]
    assert length == pytest.approx(sum(legs), abs=1e-9)
    assert length >= np.linalg.norm(goal - source)


def test_the_filter_decides_which_states_make_nodes():
    latents, ends = islands()
    every = StitchGraph.build(latents, ends, 2.0, -1)
    some = StitchGraph.build(latents, ends, 2.0, 0.9)
    assert every.kept == 1.0
    assert every.counts.sum() == len(latents)
    assert some.kept < 0.9
    assert some.counts.sum() == round(some.kept * len(latents))


def test_networkx_gets_everything(graph):
    other = graph.to_networkx()
    assert other.number_of_nodes() == len(graph.nodes)
    assert other.number_of_edges() == graph.edges
    assert networkx.is_connected(other)
    assert (other.nodes[2]["latent"] == graph.nodes[2]).all()
    assert (other.nodes[2]["observation"] == graph.observations[2]).all()
    assert other.nodes[2]["count"] == graph.counts[2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"te_threshold": 1.5}, "te_threshold"),
        ({"te_threshold": -2.0}, "te_threshold"),
        ({"horizon": 1e6}, "leaves a single node"),
        ({"horizon": 0.0}, "horizon"),
        ({"latents": np.full((240, 3), np.nan)}, "not finite"),
        ({"ends": np.zeros(240, int)}, "ends must not"),
        ({"observations": np.zeros((3, 2))}, "give as many"),
    ],
)
def test_bad_input_is_refused(changes, message):
    latents, ends = islands()
    given = {"latents": latents, "ends": ends, "horizon": 2.0, "te_threshold": 0.9} | changes
    with pytest.raises(InputError, match=message):
        StitchGraph.build(given.pop("latents"), given.pop("ends"), **given)


def test_zero_states_kept_is_a_clear_error(monkeypatch):
    # The last states of a trajectory are always kept, so only an embedding gone wrong can come to this.
    monkeypatch.setattr(graphs, "temporal_efficiency", lambda *_: np.zeros(240))
    latents, ends = islands()
    with pytest.raises(InputError, match=r"no state has a temporal efficiency of 0\.9; lower te_threshold"):
        StitchGraph.build(latents, ends, 2.0, 0.9)


def test_points_of_other_shapes_are_refused(graph):
    for point in (np.zeros(2), np.full(3, np.nan), np.zeros((1, 3))):
        with pytest.raises(InputError, match="must be 3 finite numbers"):
            graph.tree(point)
