"""Stage 2, second half: one-pass clustering of embedded states into nodes, in blocks of bounded memory.

Source: Baek et al., ICML 2025, and the authors' code: a state joins the nearest seed within half a horizon,
or becomes a seed itself; in the end a node is the mean of its members.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from hexad.core.errors import InputError
from hexad.core.validation import check_range
from hexad.rl_graph.gas.efficiency import check_latents

ROWS = 2048
"""States that are compared with the seeds at a time."""
COLUMNS = 2048
"""Seeds that they are compared with at a time: a block of distances takes 32 MB."""


@dataclass(frozen=True)
class Clusters:
    """Nodes and what they are made of.

    Attributes:
        nodes: (nodes, latent) mean of each cluster's members, float64.
        seeds: (nodes,) index of the state that began each cluster.
        labels: (states,) the cluster of each state.
        counts: (nodes,) members.
    """

    nodes: Float[np.ndarray, "nodes latent"]
    seeds: Int[np.ndarray, " nodes"]
    labels: Int[np.ndarray, " states"]
    counts: Int[np.ndarray, " nodes"]


class _Seeds:
    """The seeds so far, in memory that grows by doubling."""

    def __init__(self, latent: int) -> None:
        self.count = 0
        self._points, self._squares = np.empty((1024, latent)), np.empty(1024)

    def add(self, point: Float[np.ndarray, " latent"], square: float) -> int:
        if self.count == len(self._points):
            self._points = np.concatenate([self._points, np.empty_like(self._points)])
            self._squares = np.concatenate([self._squares, np.empty_like(self._squares)])
        self._points[self.count], self._squares[self.count] = point, square
        self.count += 1
        return self.count - 1

    def nearest(
        self, points: Float[np.ndarray, "rows latent"], squares: Float[np.ndarray, " rows"]
    ) -> tuple[Int[np.ndarray, " rows"], Float[np.ndarray, " rows"]]:
        """Each point's nearest seed, the first of equals, and its squared distance."""
        label = np.full(len(points), -1)
        best = np.full(len(points), np.inf)
        for start in range(0, self.count, COLUMNS):
            stop = min(start + COLUMNS, self.count)
            block = points @ self._points[start:stop].T
            block *= -2
            block += self._squares[start:stop]
            place = block.argmin(axis=1)
            value = block[np.arange(len(points)), place] + squares
            closer = value < best
            label[closer], best[closer] = start + place[closer], value[closer]
        if self.count:
            # Sums of squares lose digits; what decides about joining is the difference itself.
            best = np.square(points - self._points[label]).sum(axis=1)
        return label, best


def cluster_states(
    latents: Float[np.ndarray, "states latent"],
    horizon: float,
    progress: Callable[[float, str], None] | None = None,
) -> Clusters:
    """Cluster embedded states in one pass, in their order.

    A state whose nearest seed lies within horizon / 2 joins it; one strictly farther becomes a seed. Seeds do
    not move; a node is the mean of its cluster. The result is that of the pass state by state, up to
    distances that differ by less than the rounding of float64. Memory is that of the input, the nodes and
    blocks of 32 MB.

    Args:
        latents: embedded states; distances are taken in float64.
        horizon: H, the temporal distance threshold.
        progress: called as `progress(fraction, "1200 nodes")`.

    Raises:
        InputError: no states, states that are not finite, a horizon that is not positive.
    """
    latents = check_latents(latents)
    reach = (check_range("horizon", horizon, 0, low_open=True) / 2) ** 2
    # Distances do not change, and sums of squares keep more digits, where the middle of the data is 0.
    middle = latents.mean(axis=0, dtype=np.float64)
    seeds = _Seeds(latents.shape[1])
    begun: list[int] = []
    labels = np.empty(len(latents), np.int64)
    for start in range(0, len(latents), ROWS):
        points = latents[start : start + ROWS] - middle
        squares = np.square(points).sum(axis=1)
        label, best = seeds.nearest(points, squares)
        place = 0
        while len(far := np.flatnonzero(best[place:] > reach)):
            place += int(far[0])
            new = seeds.add(points[place], squares[place])
            begun.append(start + place)
            # Later states of the block have not been compared with this seed; earlier ones never are.
            away = np.square(points[place:] - points[place]).sum(axis=1)
            closer = away < best[place:]
            best[place:][closer], label[place:][closer] = away[closer], new
            place += 1
        labels[start : start + ROWS] = label
        if progress is not None:
            progress(min(start + ROWS, len(latents)) / len(latents), f"{seeds.count} nodes")
    counts = np.bincount(labels, minlength=seeds.count)
    return Clusters(member_means(latents, labels, counts), np.array(begun), labels, counts)


def member_means(
    rows: Float[np.ndarray, "states columns"],
    labels: Int[np.ndarray, " states"],
    counts: Int[np.ndarray, " nodes"],
) -> Float[np.ndarray, "nodes columns"]:
    """The mean row of each cluster, in float64."""
    if len(rows) != len(labels):
        raise InputError(f"{len(rows)} rows and {len(labels)} labels; there must be as many")
    sums = [np.bincount(labels, weights=column, minlength=len(counts)) for column in rows.T]
    return np.stack(sums, axis=1) / counts[:, None]
