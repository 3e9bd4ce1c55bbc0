"""The pictures of the study's report."""

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from hexad.core.plots import COLOURS, new_figure
from hexad.core.studies import Results
from hexad.rl_graph.gs_poweropt.study_arms import SEARCHES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOUR = dict(zip(SEARCHES, COLOURS, strict=True))


def sweep(results: Results) -> "Figure | None":
    """Error to the global peak of two-log by N, in two dimensions and in five."""
    rows = results.records.filter(pl.col("metric") == "mse").with_columns(
        size=pl.col("case").str.extract(r"two-log-(\d)").cast(int),
        N=pl.col("case").str.extract(r"N=(.*)").cast(float),
    )
    sizes = sorted(rows["size"].unique())
    if rows.is_empty():
        return None
    figure, axes = new_figure(4.2 * len(sizes) + 0.6, 4.0, columns=len(sizes), squeeze=False, sharey=True)
    for axis, size in zip(axes[0], sizes, strict=True):
        chosen = rows.filter(pl.col("size") == size)
        for arm, label in (("gspower", "EPGS, centred"), ("paper", "EPGS, the paper's update")):
            own = chosen.filter(pl.col("arm") == arm).group_by("N").agg(pl.col("value").mean()).sort("N")
            axis.plot(own["N"], own["value"], marker="o", color=COLOUR[arm], label=label)
        flat = chosen.filter(pl.col("arm") == "smoothing")
        if not flat.is_empty():
            axis.axhline(
                flat["value"].mean(), color=COLOUR["smoothing"], linestyle="--", label="smoothing, N to 0"
            )
        axis.set_yscale("log")
        axis.set_title(f"two-log, d = {size}")
        axis.set_xlabel("power N")
    axes[0, 0].set_ylabel("MSE to the global peak")
    axes[0, 0].legend(loc="lower left")
    return figure


def attacks(results: Results) -> "Figure | None":
    """Norm of the attacks against their time, a point a seed."""
    rows = results.records.filter(pl.col("metric").is_in(["norm", "time"]))
    wide = rows.pivot("metric", index=["arm", "seed"], values="value").drop_nulls() if len(rows) else rows
    if wide.is_empty() or not {"norm", "time"} <= set(wide.columns):
        return None
    figure, axis = new_figure(7.0, 4.2)
    for arm, colour in COLOUR.items():
        own = wide.filter(pl.col("arm") == arm)
        if not own.is_empty():
            axis.plot(own["time"], own["norm"], "o", color=colour, label=arm)
    axis.set_xscale("log")
    axis.set_xlabel("time of an attack, of gspower's")
    axis.set_ylabel("mean norm of the perturbation")
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def digits(results: Results) -> "Figure | None":
    """Images before and after the attacks of the method, what was added, and CMA-ES's result below."""
    folders = {arm: results.folders.get((arm, 0)) for arm in ("gspower", "cma")}
    loaded = {}
    for arm, folder in folders.items():
        if folder is not None and (folder / "attacks.npz").is_file():
            with np.load(folder / "attacks.npz") as file:
                loaded[arm] = {name: file[name] for name in file.files}
    if "gspower" not in loaded:
        return None
    count = min(6, len(loaded["gspower"]["images"]))
    figure, axes = new_figure(
        1.5 * count + 0.8, 1.65 * (1 + len(loaded)), rows=1 + len(loaded), columns=count, squeeze=False
    )
    for row, arm in enumerate((None, *loaded)):
        for place in range(count):
            axis, found = axes[row, place], loaded[arm or "gspower"]
            picture = found["images"][place] + (0 if arm is None else found["deltas"][place])
            axis.imshow(picture.reshape(8, 8), cmap="gray_r", vmin=-0.3, vmax=1.3)
            axis.set(xticks=[], yticks=[])
            axis.grid(visible=False)
            if arm is not None:
                fooled = np.isfinite(found["norms"][place])
                text = f"read as {found['targets'][place]}, {found['norms'][place]:.2f}"
                axis.set_title(text if fooled else "not fooled", fontsize=8)
        axes[row, 0].set_ylabel(arm or "image", fontsize=9)
    return figure


def fits(results: Results) -> "Figure | None":
    """Where the method loses: the best values on Rastrigin and Griewank, and the hits on the sunspots."""
    panels = (
        ("log_value", "rastrigin", "Rastrigin: log10 of the value"),
        ("log_value", "griewank", "Griewank: log10 of the value"),
        ("hit", "sunspots", "sunspots: share of hits"),
    )
    rows = results.records.filter(pl.col("metric").is_in(["log_value", "hit"]))
    if rows.is_empty():
        return None
    figure, axes = new_figure(11.0, 3.8, columns=3, sharey=True)
    names = [arm for arm in COLOUR if arm in set(rows["arm"])]
    for axis, (metric, case, title) in zip(axes, panels, strict=True):
        for place, arm in enumerate(names):
            own = rows.filter(
                (pl.col("arm") == arm) & (pl.col("metric") == metric) & (pl.col("case") == case)
            )
            axis.plot(own["value"], np.full(len(own), place), "o", color=COLOUR[arm], alpha=0.4)
            if len(own):
                axis.plot(own["value"].mean(), place, "|", color=COLOUR[arm], markersize=16, mew=3)
        axis.set_title(title)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    return figure
