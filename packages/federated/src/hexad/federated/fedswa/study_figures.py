"""The pictures of the study's report."""

import json
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from matplotlib.ticker import MaxNLocator

from hexad.core.plots import COLOURS, new_figure
from hexad.core.studies import Results
from hexad.federated.fedswa.study_arms import VARIANTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOUR = dict(zip(VARIANTS, COLOURS, strict=True))
SHOWN = [name for name, variant in VARIANTS.items() if variant.everywhere]


def convergence(results: Results) -> "Figure | None":
    """Test accuracy over rounds on each partition, the mean over seeds and their range."""
    partitions = results.config.partitions
    curves: dict[tuple[str, str], list[list[tuple[float, float]]]] = {}
    for (arm, _), folder in sorted(results.folders.items()):
        for part in partitions:
            path = folder / f"history-{part}.json"
            if arm in SHOWN and path.is_file():
                rows = json.loads(path.read_text())
                points = [(row["round"], 100 * row["accuracy"]) for row in rows]
                curves.setdefault((part, arm), []).append(points)
    if not curves:
        return None
    figure, axes = new_figure(
        3.6 * len(partitions) + 1, 4.0, columns=len(partitions), squeeze=False, sharey=True
    )
    for axis, part in zip(axes[0], partitions, strict=True):
        for arm in SHOWN:
            if (part, arm) in curves:
                table = np.array(curves[part, arm])
                rounds, values = table[0, :, 0], table[:, :, 1]
                axis.plot(rounds, values.mean(0), color=COLOUR[arm], label=arm, linewidth=1.5)
                axis.fill_between(rounds, values.min(0), values.max(0), color=COLOUR[arm], alpha=0.12)
        axis.set_title("iid" if part == "iid" else f"Dirichlet {part}")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_xlabel("round")
    axes[0, 0].set_ylabel("test accuracy [%]")
    axes[0, -1].legend(loc="lower right")
    return figure


def bias(results: Results) -> "Figure | None":
    """Distance to the optimum of the quadratics, by how many clients take part."""
    rows = results.records.filter(pl.col("metric") == "distance")
    if rows.is_empty():
        return None
    figure, axis = new_figure(7.0, 4.0)
    for arm, colour in COLOUR.items():
        points = []
        for participants in sorted(results.config.participants):
            values = rows.filter((pl.col("arm") == arm) & (pl.col("case") == f"s={participants}"))["value"]
            if len(values):
                points.append((participants, float(np.exp(np.log(np.maximum(values, 1e-17)).mean()))))
        if points and arm != "fedavg-equal":  # the same as FedAvg: these clients weigh alike
            axis.plot(*zip(*points, strict=True), marker="o", color=colour, label=arm)
    axis.set_yscale("log")
    axis.set_xticks(results.config.participants)
    axis.set_xlabel("clients in a round, of 20")
    axis.set_ylabel("distance to the optimum")
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def sharpness(results: Results) -> "Figure | None":
    """Accuracy against the Hessian's top eigenvalue on the first partition, a point a seed."""
    part = results.config.partitions[0]
    rows = results.records.filter(pl.col("case") == part)
    figure, axis = new_figure(7.0, 4.0)
    drawn = False
    for arm, colour in COLOUR.items():
        sharp, right = (
            rows.filter((pl.col("arm") == arm) & (pl.col("metric") == metric)).sort("seed")["value"]
            for metric in ("eigenvalue", "accuracy")
        )
        if len(sharp) and len(sharp) == len(right):
            axis.plot(sharp, 100 * right, "o", color=colour, label=arm)
            drawn = True
    if not drawn:
        return None
    axis.set_xlabel("largest eigenvalue of the training loss's Hessian")
    axis.set_ylabel("test accuracy [%]")
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
