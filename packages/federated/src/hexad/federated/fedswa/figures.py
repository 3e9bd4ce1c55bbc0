"""Pictures of a simulation: which client has what, and how the strategies converge."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int
from matplotlib.colors import LogNorm
from matplotlib.ticker import MaxNLocator

from hexad.core.plots import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, float]]


def draw_partition(counts: Int[np.ndarray, "clients classes"]) -> "Figure":
    """Examples of each class at each client as a map, the clients' sizes above it."""
    clients, classes = counts.shape
    figure, (top, bottom) = new_figure(9.0, 4.2, rows=2, sharex=True, height_ratios=(1, 2))
    top.bar(np.arange(clients), counts.sum(1), width=1.0, color=COLOURS[0])
    top.set_ylabel("examples")
    top.grid(False)
    image = bottom.imshow(
        np.where(counts.T > 0, counts.T, np.nan),
        aspect="auto",
        cmap="viridis",
        interpolation="nearest",
        norm=LogNorm(1, max(2, counts.max())),
    )
    bottom.set_facecolor("#f2f2f2")
    bottom.set_yticks(range(classes))
    bottom.set_ylabel("class")
    bottom.set_xlabel("client")
    bottom.xaxis.set_major_locator(MaxNLocator(integer=True))
    bottom.grid(False)
    figure.colorbar(image, ax=[top, bottom], label="examples of the class")
    return figure


def draw_histories(histories: Mapping[str, Rows]) -> "Figure":
    """Accuracy of each strategy over rounds and over traffic, on the server's examples."""
    figure, (left, right) = new_figure(9.6, 4.0, columns=2, sharey=True)
    for colour, (name, rows) in zip(COLOURS, histories.items(), strict=False):
        accuracy = [100 * row["accuracy"] for row in rows]
        left.plot([row["round"] for row in rows], accuracy, color=colour, label=name)
        right.plot([row["megabytes"] for row in rows], accuracy, color=colour, label=name)
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.set_xlabel("round")
    left.set_ylabel("test accuracy [%]")
    right.set_xlabel("arrays sent and received [MB]")
    left.legend(loc="lower right")
    return figure
