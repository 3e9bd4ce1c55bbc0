"""The pictures of the study's report."""

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from hexad.core.plots import COLOURS, new_figure
from hexad.core.studies import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "none": "none",
    "drop-path": "DropPath",
    "slws": "SLWS",
    "slws-drop-path": "SLWS + DropPath",
    "constant": "constant rate",
    "unrestored": "not restored",
}


def accuracies(results: Results) -> "Figure | None":
    """Clean and shuffled test accuracy of each arm, a point a seed, a bar at their mean."""
    rows = results.records
    arms = [arm for arm in TITLES if not rows.filter(arm=arm).is_empty()]
    if not arms:
        return None
    figure, axis = new_figure(8.4, 4.2)
    for shift, colour, metric, label in (
        (-0.18, COLOURS[0], "test", "tokens in order"),
        (0.18, COLOURS[1], "forced", "last half of the layers shuffled"),
    ):
        for place, arm in enumerate(arms):
            values = (
                100 * rows.filter((pl.col("arm") == arm) & (pl.col("metric") == metric))["value"].to_numpy()
            )
            if len(values):
                name = label if place == 0 else None
                axis.plot(np.full(len(values), place + shift), values, ".", color=colour, alpha=0.5)
                axis.plot(place + shift, values.mean(), "_", color=colour, markersize=22, label=name)
    axis.set_xticks(range(len(arms)), [TITLES[arm] for arm in arms])
    axis.set_ylabel("test digits named rightly [%]")
    axis.legend(loc="lower right")
    return figure


def losses(results: Results) -> "Figure | None":
    """Training loss of each arm, the mean over seeds, smoothed."""
    curves: dict[str, list[np.ndarray]] = {}
    for (arm, _), folder in sorted(results.folders.items()):
        if (folder / "losses.npy").is_file():
            curves.setdefault(arm, []).append(np.load(folder / "losses.npy"))
    if not curves:
        return None
    figure, axis = new_figure(7.0, 4.0)
    for colour, arm in zip(COLOURS, TITLES, strict=False):
        if arm in curves:
            mean = np.mean(curves[arm], axis=0)
            width = max(1, len(mean) // 30)
            smooth = np.convolve(mean, np.full(width, 1 / width), mode="valid")
            axis.plot(np.arange(len(smooth)) + width, smooth, color=colour, label=TITLES[arm])
    axis.set_yscale("log")
    axis.set_xlabel("step")
    axis.set_ylabel("training loss (while shuffling)")
    axis.legend()
    return figure
