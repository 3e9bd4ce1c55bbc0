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
    """The seeds so far, in memory that grows by doubling: as they are, and less the middle of the data."""

    def __init__(self, latent: int) -> None:
        self.count = 0
        self._points, self._shifted = np.empty((1024, latent)), np.empty((1024, latent))
        self._squares = np.empty(1024)

    def add(
        self, point: Float[np.ndarray, " latent"], shifted: Float[np.ndarray, " latent"], square: float
    ) -> int:
        if self.count == len(self._points):
            grown = (self._points, self._shifted, self._squares)
            self._points, self._shifted, self._squares = (
                np.concatenate([a, np.empty_like(a)]) for a in grown
            )
        self._points[self.count], self._shifted[self.count] = point, shifted
        self._squares[self.count] = square
        self.count += 1
        return self.count - 1

    def nearest(
        self,
        points: Float[np.ndarray, "rows latent"],
        shifted: Float[np.ndarray, "rows latent"],
        squares: Float[np.ndarray, " rows"],
        reach: float,
    ) -> tuple[Int[np.ndarray, " rows"], Float[np.ndarray, " rows"]]:
        """Each point's nearest seed within reach, the first of equals, and its distance; -1 and inf for none.

        |p - s|² = |p|² - 2 p s + |s|² is one matrix product, but loses digits. It only chooses the seeds that
        rounding leaves in question, whose distances are then computed as they are defined.
        """
        label = np.full(len(points), -1)
        best = np.full(len(points), np.inf)
        # Upper bounds of |p - s|² - |p|²; what lies beyond reach need not be found.
        bound = reach * reach * (1 + 1e-12) - squares
        doubled, lengths = -2 * shifted, np.sqrt(squares)
        unit = 8 * (points.shape[1] + 10) * np.finfo(np.float64).eps
        for start in range(0, self.count, COLUMNS):
            stop = min(start + COLUMNS, self.count)
            block = doubled @ self._shifted[start:stop].T
            block += self._squares[start:stop]
            slack = unit * np.square(lengths + np.sqrt(self._squares[start:stop].max()))
            np.minimum(bound, block.min(axis=1) + slack, out=bound)
            row, column = np.divmod(np.flatnonzero(block <= (bound + slack)[:, None]), stop - start)
            size = max(1, ROWS * COLUMNS // (4 * points.shape[1]))
            for part in range(0, len(row), size):
                i, j = row[part : part + size], column[part : part + size] + start
                away = _lengths(points[i] - self._points[j])
                first = np.flatnonzero(np.diff(i, prepend=-1))  # the pairs of a row follow each other
                least = np.repeat(np.minimum.reduceat(away, first), np.diff(first, append=len(i)))
                chosen = np.flatnonzero(away == least)
                chosen = chosen[np.diff(i[chosen], prepend=-1) != 0]  # of equals the first
                chosen = chosen[away[chosen] < best[i[chosen]]]
                best[i[chosen]], label[i[chosen]] = away[chosen], j[chosen]
        return label, best


def _lengths(ways: Float[np.ndarray, "pairs latent"]) -> Float[np.ndarray, " pairs"]:
    return np.sqrt(np.square(ways).sum(axis=1))


def cluster_states(
    latents: Float[np.ndarray, "states latent"],
    horizon: float,
    progress: Callable[[float, str], None] | None = None,
) -> Clusters:
    """Cluster embedded states in one pass, in their order.

    A state whose nearest seed lies within horizon / 2 joins it; one strictly farther becomes a seed. Seeds do
    not move; a node is the mean of its cluster. The result is that of the pass state by state, with distances
    computed in float64 as lengths of differences. Memory is that of the input, the nodes and blocks of 32 MB.

    Args:
        latents: embedded states; distances are taken in float64.
        horizon: H, the temporal distance threshold.
        progress: called as `progress(fraction, "1200 nodes")`.

    Raises:
        InputError: no states, states that are not finite, a horizon that is not positive.
    """
    latents = check_latents(latents)
    reach = check_range("horizon", horizon, 0, low_open=True) / 2
    # Sums of squares keep more digits where the middle of the data is 0.
    middle = latents.mean(axis=0, dtype=np.float64)
    seeds = _Seeds(latents.shape[1])
    begun: list[int] = []
    labels = np.empty(len(latents), np.int64)
    for start in range(0, len(latents), ROWS):
        points = np.ascontiguousarray(latents[start : start + ROWS], np.float64)
        shifted = points - middle
        squares = np.square(shifted).sum(axis=1)
        if not squares.max() < np.finfo(np.float64).max / 8:
            raise InputError("latents are too large: squares of their distances overflow float64")
        label, best = seeds.nearest(points, shifted, squares, reach)
        place = 0
        while len(far := np.flatnonzero(best[place:] > reach)):
            place += int(far[0])
            new = seeds.add(points[place], shifted[place], squares[place])
            begun.append(start + place)
            # Later states of the block have not been compared with this seed; earlier ones never are.
            away = _lengths(points[place:] - points[place])
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
