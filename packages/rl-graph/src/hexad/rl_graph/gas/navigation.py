"""Stage 4: following a graph to a goal, for many episodes at once.

Source: Baek et al., ICML 2025, and the authors' code. Each step: of the nodes in reach the one with the
shortest way to the goal; of the nodes on its path the farthest along that is in reach is the sub-goal. Once
the path is short, the goal itself is, for the rest of the episode.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.spatial.distance import cdist

from hexad.core.errors import InputError
from hexad.rl_graph.gas.graph import PathTree, StitchGraph

LATCH = 2
"""A path of so many nodes, the goal among them, leads straight to the goal; 1 for kitchens in the paper."""


class Navigator:
    """Sub-goals for episodes that run side by side, each with its goal, path and latch.

    Args:
        graph: on which to plan; None heads straight for the goal.
        locate: embeds observations as the graph's nodes are.
        goals: (episodes, obs_dim), observations.
        latch: nodes of a path, the goal among them, from which on the goal is the sub-goal.

    Attributes:
        subgoals: (episodes, latent), where each episode heads after `update`.
        latched: (episodes,), which head straight for their goal.
    """

    def __init__(
        self,
        graph: StitchGraph | None,
        locate: Callable[[Float[np.ndarray, "n obs_dim"]], Float[np.ndarray, "n latent"]],
        goals: Float[np.ndarray, "episodes obs_dim"],
        *,
        latch: int = LATCH,
    ) -> None:
        self.graph, self.locate, self.latch = graph, locate, latch
        goals = np.asarray(goals)
        self.goals = np.asarray(locate(goals), np.float64)
        self.subgoals = self.goals.copy()
        self.latched: Bool[np.ndarray, " episodes"] = np.full(len(goals), graph is None)
        self.trees: list[PathTree] = []
        self._first = np.full(len(goals), -1)  # the node that an episode's path begins at; -1: none yet
        if graph is not None:
            known: dict[bytes, PathTree] = {}
            for goal in self.goals:
                known.setdefault(goal.tobytes(), graph.tree(goal))
            self.trees = [known[goal.tobytes()] for goal in self.goals]

    def path(self, episode: int) -> list[int]:
        """The nodes of the episode's path as it was last chosen, without the goal."""
        first = int(self._first[episode])
        return [] if first < 0 else self.trees[episode].path(first)[:-1]

    def update(
        self, observations: Float[np.ndarray, "episodes obs_dim"]
    ) -> Float[np.ndarray, "episodes latent"]:
        """Choose each episode's sub-goal and return the directions there, sub-goal less state.

        Raises:
            InputError: not one observation an episode.
        """
        here = np.asarray(self.locate(np.asarray(observations)), np.float64)
        if len(here) != len(self.goals):
            raise InputError(f"{len(here)} observations for {len(self.goals)} episodes; give one each")
        if self.graph is not None and not self.latched.all():
            self._replan(self.graph, here, np.flatnonzero(~self.latched))
        return self.subgoals - here

    def _replan(
        self, graph: StitchGraph, here: Float[np.ndarray, "episodes latent"], active: Int[np.ndarray, " n"]
    ) -> None:
        away = cdist(here[active], graph.nodes)
        lengths = np.stack([self.trees[episode].lengths for episode in active])
        way = np.where(away <= graph.horizon, away + lengths, np.inf)
        first = way.argmin(axis=1)
        lost = np.isinf(way[np.arange(len(active)), first])
        # Out of reach of all nodes an episode keeps its path; in its first step it takes the nearest node.
        known = np.where(self._first[active] < 0, away.argmin(axis=1), self._first[active])
        self._first[active] = first = np.where(lost, known, first)
        for place, episode in enumerate(active):
            tree = self.trees[episode]
            path = tree.paths[first[place]]
            size = int((path < len(graph.nodes)).sum())  # then the goal follows
            if size + 1 <= self.latch:
                self.latched[episode], self.subgoals[episode] = True, self.goals[episode]
                continue
            reach = np.flatnonzero(away[place, path[:size]] <= graph.horizon)
            to_goal = np.linalg.norm(here[episode] - self.goals[episode])
            if to_goal <= graph.horizon:
                self.subgoals[episode] = self.goals[episode]
            else:
                self.subgoals[episode] = graph.nodes[path[reach[-1] if len(reach) else 0]]
