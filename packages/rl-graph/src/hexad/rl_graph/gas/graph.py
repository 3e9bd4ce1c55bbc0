"""Stage 2: the graph over clusters of embedded states, and shortest paths on it.

Source: Baek et al., ICML 2025, and the authors' code. Nodes within a horizon of each other are joined;
what hangs apart is joined to the rest by its nearest node; a goal is joined to the nodes near it.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse
from scipy.sparse import csgraph

from hexad.core.errors import InputError, MissingExtraError
from hexad.core.validation import check_range
from hexad.rl_graph.gas.clustering import cluster_states, member_means
from hexad.rl_graph.gas.efficiency import check_ends, check_latents, temporal_efficiency

if TYPE_CHECKING:
    import networkx

GOAL_REACH = 1.2
"""A goal far from all nodes is joined to those up to so many times the nearest one's distance."""
BLOCK = 1024
"""Nodes whose distances to all nodes are held at a time."""


@dataclass(frozen=True)
class PathTree:
    """Shortest paths from every node to one goal.

    Attributes:
        goal: (latent,) the embedded goal.
        lengths: (nodes,) length of the path to the goal, in latent distance.
        successors: (nodes,) the next node on the way; the number of nodes stands for the goal itself.
    """

    goal: Float[np.ndarray, " latent"]
    lengths: Float[np.ndarray, " nodes"]
    successors: Int[np.ndarray, " nodes"]

    def path(self, node: int) -> list[int]:
        """Nodes from `node` on, with the goal (the number of nodes) as the last."""
        path = [node]
        while path[-1] < len(self.successors):
            path.append(int(self.successors[path[-1]]))
        return path

    @functools.cached_property
    def paths(self) -> Int[np.ndarray, "nodes longest"]:
        """The path of every node as a row, filled up with the goal."""
        chain = np.append(self.successors, len(self.successors))  # the goal follows itself
        columns = [np.arange(len(self.successors))]
        while (columns[-1] < len(self.successors)).any():
            columns.append(chain[columns[-1]])
        return np.stack(columns, axis=1)


@dataclass(frozen=True)
class StitchGraph:
    """Nodes in the embedding and the ways between them; made by `build`.

    Attributes:
        nodes: (nodes, latent) means of clusters.
        weights: (nodes, nodes) symmetric sparse matrix of latent distances of joined nodes.
        horizon: H, the longest distance of joined nodes (repairs aside).
        te_threshold: the temporal efficiency of the states that were kept.
        encoder: digest of the embedding, "" where it is not known.
        kept: share of the states that were clustered.
        counts: (nodes,) states in each cluster.
        observations: (nodes, obs_dim) mean observation of each cluster, for pictures; or None.
        repairs: ways that were added to make one component.
    """

    nodes: Float[np.ndarray, "nodes latent"]
    weights: sparse.csr_array
    horizon: float
    te_threshold: float
    encoder: str
    kept: float
    counts: Int[np.ndarray, " nodes"]
    observations: Float[np.ndarray, "nodes obs_dim"] | None = None
    repairs: int = 0

    @classmethod
    def build(
        cls,
        latents: Float[np.ndarray, "states latent"],
        ends: Int[np.ndarray, " states"],
        horizon: float,
        te_threshold: float = 0.99,
        *,
        encoder: str = "",
        observations: Float[np.ndarray, "states obs_dim"] | None = None,
        progress: Callable[[float, str], None] | None = None,
    ) -> Self:
        """Keep the efficient states, cluster them, join and repair.

        Args:
            latents: embedded states, trajectory after trajectory.
            ends: for each state the index of the last state of its trajectory.
            horizon: H, in units of the embedding (discounted steps).
            te_threshold: states of less temporal efficiency are left out; -1 keeps all.
            encoder: digest of the embedding, which `GAS` checks when a graph is loaded.
            observations: of the states, from which each node gets a mean one.
            progress: called as `progress(fraction, "1200 nodes")`.

        Raises:
            InputError: a threshold outside [-1, 1], no state kept, a single node, or as
                `temporal_efficiency`.
        """
        latents = check_latents(latents)
        ends = check_ends(ends, len(latents))
        check_range("horizon", horizon, 0, low_open=True)
        check_range("te_threshold", te_threshold, -1, 1)
        if observations is not None and len(observations) != len(latents):
            raise InputError(f"{len(observations)} observations and {len(latents)} latents; give as many")
        kept = np.flatnonzero(temporal_efficiency(latents, ends, horizon) >= te_threshold)
        if len(kept) == 0:
            raise InputError(f"no state has a temporal efficiency of {te_threshold}; lower te_threshold")
        clusters = cluster_states(latents[kept], horizon, progress)
        if len(clusters.nodes) < 2:
            raise InputError(
                f"horizon {horizon} leaves a single node: all states lie within {horizon / 2:g} of the first "
                "in the embedding; lower the horizon, train the embedding longer, or scale the observations "
                "(standardize does) if they vary little beside their size"
            )
        weights, repairs = join_nodes(clusters.nodes, horizon)
        means = None
        if observations is not None:
            means = member_means(np.asarray(observations)[kept], clusters.labels, clusters.counts)
        share = len(kept) / len(latents)
        return cls(
            clusters.nodes, weights, float(horizon), float(te_threshold), encoder, share, clusters.counts,
            means, repairs,
        )  # fmt: skip

    @property
    def edges(self) -> int:
        """Pairs of joined nodes."""
        return self.weights.nnz // 2

    def tree(self, goal: Float[np.ndarray, " latent"]) -> PathTree:
        """Shortest paths from every node to an embedded goal.

        The goal is joined to the nodes nearer than max(H, 1.2 times the nearest one's distance).

        Raises:
            InputError: another shape, or numbers that are not finite.
        """
        goal = self._point(goal, "goal")
        near, away = self._near(goal)
        graph = self._with_point(near, away)
        lengths, before = csgraph.dijkstra(graph, indices=len(self.nodes), return_predecessors=True)
        return PathTree(goal, lengths[:-1], before[:-1].astype(np.int64))

    def shortest_path(
        self, source: Float[np.ndarray, " latent"], goal: Float[np.ndarray, " latent"]
    ) -> tuple[list[int], float]:
        """Nodes between two embedded states and the length of the way through them.

        Both are joined to the graph as goals are; a way from source to goal past all nodes is not looked for.

        Raises:
            InputError: another shape, or numbers that are not finite.
        """
        source, tree = self._point(source, "source"), self.tree(goal)
        near, away = self._near(source)
        best = int(np.argmin(away + tree.lengths[near]))
        return tree.path(int(near[best]))[:-1], float(away[best] + tree.lengths[near[best]])

    def to_networkx(self) -> "networkx.Graph":
        """The graph with a `weight` on each edge, and on each node its `latent`, `count` and `observation`.

        Raises:
            MissingExtraError: networkx is not installed.
        """
        try:
            import networkx
        except ModuleNotFoundError as error:
            raise MissingExtraError("to_networkx needs networkx; run: pip install networkx") from error
        graph = networkx.from_scipy_sparse_array(self.weights)
        features: dict[int, dict[str, Any]] = {
            node: {"latent": latent, "count": int(count)}
            for node, (latent, count) in enumerate(zip(self.nodes, self.counts, strict=True))
        }
        if self.observations is not None:
            for node, observation in enumerate(self.observations):
                features[node]["observation"] = observation
        networkx.set_node_attributes(graph, features)
        return graph

    def _point(self, point: Float[np.ndarray, " latent"], what: str) -> Float[np.ndarray, " latent"]:
        array = np.asarray(point, np.float64)
        if array.shape != self.nodes.shape[1:] or not np.isfinite(array).all():
            raise InputError(
                f"{what} must be {self.nodes.shape[1]} finite numbers, an embedded state; it has shape "
                f"{array.shape}"
            )
        return array

    def _near(
        self, point: Float[np.ndarray, " latent"]
    ) -> tuple[Int[np.ndarray, " near"], Float[np.ndarray, " near"]]:
        """The nodes that a point outside the graph is joined to, and their distances."""
        away = np.linalg.norm(self.nodes - point, axis=1)
        # A point that is a node itself has distance 0, which csgraph would take for no edge.
        away = np.maximum(away, np.finfo(np.float64).tiny)
        near = np.flatnonzero(away < max(self.horizon, GOAL_REACH * float(away.min())))
        return near, away[near]

    def _with_point(
        self, near: Int[np.ndarray, " near"], away: Float[np.ndarray, " near"]
    ) -> sparse.csr_array:
        """The weights with one more node, joined to those."""
        size = len(self.nodes)
        row = sparse.csr_array((away, (np.zeros_like(near), near)), shape=(1, size))
        return sparse.csr_array(sparse.block_array([[self.weights, row.T], [row, None]], format="csr"))


def join_nodes(nodes: Float[np.ndarray, "nodes latent"], horizon: float) -> tuple[sparse.csr_array, int]:
    """Distances of the nodes within a horizon of each other, with what is missing to one component.

    Component 0, that of node 0, is joined to its nearest outside node, again and again, until none is left.

    Returns:
        the symmetric matrix of weights, and how many ways were added.
    """
    rows, columns, values = [], [], []
    for start in range(0, len(nodes), BLOCK):
        away = distances(nodes[start : start + BLOCK], nodes)
        row, column = np.nonzero(away <= horizon)
        apart = row + start != column
        rows.append(row[apart] + start)
        columns.append(column[apart])
        values.append(away[row[apart], column[apart]])
    size = (len(nodes), len(nodes))
    triple = [np.concatenate(part) for part in (rows, columns, values)]
    weights = sparse.csr_array((triple[2], (triple[0], triple[1])), shape=size)
    extra = _bridges(nodes, csgraph.connected_components(weights, directed=False)[1])
    if extra:
        a, b, length = (np.array(part) for part in zip(*extra, strict=True))
        bridge = sparse.csr_array((length, (a, b)), shape=size)
        weights = weights + bridge + bridge.T
    return sparse.csr_array(weights), len(extra)


def _bridges(
    nodes: Float[np.ndarray, "nodes latent"], component: Int[np.ndarray, " nodes"]
) -> list[tuple[int, int, float]]:
    """Pairs to join, with their distances: component 0 grows by the component of the nearest outside node."""
    found = []
    inside = component == component[0]
    best, origin = np.full(len(nodes), np.inf), np.full(len(nodes), -1)
    fresh = np.flatnonzero(inside)
    while not inside.all():
        outside = np.flatnonzero(~inside)
        for start in range(0, len(fresh), BLOCK):
            part = fresh[start : start + BLOCK]
            away = distances(part_nodes := nodes[part], nodes[outside])
            place = away.argmin(axis=0)
            nearer = away[place, np.arange(len(outside))]
            closer = nearer < best[outside]
            best[outside[closer]], origin[outside[closer]] = nearer[closer], part[place[closer]]
            del part_nodes
        chosen = int(outside[best[outside].argmin()])
        found.append((int(origin[chosen]), chosen, float(best[chosen])))
        fresh = np.flatnonzero(component == component[chosen])
        inside[fresh] = True
    return found


def distances(
    a: Float[np.ndarray, "rows latent"], b: Float[np.ndarray, "columns latent"]
) -> Float[np.ndarray, "rows columns"]:
    """Euclidean distances of all pairs, each as the length of the difference."""
    from scipy.spatial.distance import cdist

    return cdist(a, b)
