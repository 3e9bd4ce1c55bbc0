"""The pictures of the study's report."""

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from hexad.core.plots import COLOURS, new_figure
from hexad.core.studies import Results
from hexad.llm_efficiency.spargeattn.study_photographs import PHOTOGRAPHS, photograph_case
from hexad.llm_efficiency.spargeattn.variants import Config

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "sparge": "SpargeAttn",
    "tuned": "tuned",
    "int8": "INT8",
    "row-major": "row-major",
    "random-order": "random order",
    "judge-on": "row-major, tau 0.9",
    "judge-off": "no judge, tau 0.9",
    "dense": "dense",
    "flex": "flex_attention",
    "random-tiles": "random tiles",
    "window": "window",
}


def _stored(results: Results, arm: str, name: str, side: int) -> Any | None:
    folder = results.folders.get((arm, 0))
    path = folder / f"{name}-{side}.npz" if folder is not None else None
    return np.load(path) if path is not None and path.is_file() else None


def _value(results: Results, arm: str, metric: str, case: str) -> float | None:
    """At seed 0, whose pictures are shown."""
    rows = results.records.filter(
        (pl.col("arm") == arm)
        & (pl.col("metric") == metric)
        & (pl.col("case") == case)
        & (pl.col("seed") == 0)
    )
    return None if rows.is_empty() else float(rows["value"][0])


def pictures(results: Results) -> "Figure | None":
    """Noisy, dense and sparse pictures side by side, and what skipping without the judge does."""
    from hexad.llm_efficiency.spargeattn.photographs import denoising_task

    config: Config = results.config
    side = max(config.sides)
    arms = [
        arm
        for arm in ("dense", "sparge", "judge-on", "judge-off", "random-tiles")
        if all(_stored(results, arm, name, side) is not None for name in PHOTOGRAPHS)
    ]
    if not arms:
        return None
    columns = 1 + len(arms)
    figure, axes = new_figure(1.9 * columns, 2.2 * len(PHOTOGRAPHS), len(PHOTOGRAPHS), columns, squeeze=False)
    for row, name in zip(axes, PHOTOGRAPHS, strict=True):
        task = denoising_task(name, side)
        shown = [("noisy", task.noisy.clamp(0, 1).numpy(), task.psnr(task.v))]
        for arm in arms:
            value = _value(results, arm, "psnr", photograph_case(name, side))
            stored = _stored(results, arm, name, side)
            assert stored is not None
            shown.append((TITLES[arm], stored["image"], value))
        for axis, (title, image, value) in zip(row, shown, strict=True):
            axis.imshow(image, interpolation="nearest")
            axis.set_title(title if value is None else f"{title}\n{value:.2f} dB", fontsize=9)
            axis.set_axis_off()
    return figure


def tiles(results: Results) -> "Figure | None":
    """Which tiles are computed, with the pixels in row-major and in Hilbert order."""
    config: Config = results.config
    side, name = max(config.sides), PHOTOGRAPHS[0]
    shown = [
        (title, stored["tiles"])
        for arm, title in (("row-major", "row-major order"), ("sparge", "Hilbert order"))
        if (stored := _stored(results, arm, name, side)) is not None
    ]
    if not shown:
        return None
    figure, axes = new_figure(3.6 * len(shown), 3.9, 1, len(shown), squeeze=False)
    for axis, (title, mask) in zip(axes[0], shown, strict=True):
        # Light where skipped, blue where computed.
        axis.imshow(mask, aspect="auto", cmap="Blues", vmin=0, vmax=1.2, interpolation="nearest")
        axis.set_title(f"{title}: {1 - mask.mean():.0%} skipped")
        axis.set_xlabel("block of keys")
        axis.set_ylabel("block of queries")
        axis.grid(visible=False)
    return figure


def _photographs(results: Results, metric: str) -> pl.DataFrame:
    """Means over seeds and photographs by arm and number of tokens."""
    rows = results.records.filter((pl.col("metric") == metric) & ~pl.col("case").str.starts_with("text/"))
    tokens = pl.col("case").str.split("/").list.last().cast(pl.Int64).alias("tokens")
    return rows.group_by("arm", tokens).agg(pl.col("value").mean()).sort("arm", "tokens")


def tradeoff(results: Results) -> "Figure | None":
    """Relative L1 error against the share of tiles skipped, of every sparse arm at the largest size."""
    config: Config = results.config
    side = max(config.sides)
    sparsity = _photographs(results, "sparsity").rename({"value": "sparsity"})
    joined = sparsity.join(_photographs(results, "rel_l1"), on=["arm", "tokens"])
    # The random order skips nothing and flex_attention has SpargeAttn's own tiles: neither is a trade.
    joined = joined.filter((pl.col("tokens") == side * side) & ~pl.col("arm").is_in(["flex", "random-order"]))
    if joined.is_empty():
        return None
    figure, axis = new_figure(7.0, 4.2)
    markers = {"sparge": "o", "tuned": "s", "int8": "D", "random-tiles": "x", "window": "+"}
    for index, arm in enumerate(name for name in TITLES if name in joined["arm"]):
        row = joined.row(by_predicate=pl.col("arm") == arm, named=True)
        axis.plot(
            row["sparsity"],
            row["value"],
            markers.get(arm, "^"),
            color=COLOURS[index],
            markersize=9,
            markeredgewidth=2,
            label=TITLES[arm],
        )
    axis.set_yscale("log")
    axis.set_xlim(0, 1)
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    axis.set_xlabel("share of tiles skipped")
    axis.set_ylabel("relative L1 error")
    axis.set_title(f"{side * side:,} tokens, mean of both photographs")
    return figure


def speed(results: Results) -> "Figure | None":
    """Speed of the whole call over SDPA, against the number of tokens."""
    values = _photographs(results, "speedup")
    if values.is_empty():
        return None
    figure, axis = new_figure(7.0, 4.0)
    axis.axhline(1, color="#888888", linewidth=1)
    axis.annotate("SDPA", (0.99, 1), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=9)
    for index, arm in enumerate(name for name in TITLES if name in values["arm"].unique()):
        rows = values.filter(pl.col("arm") == arm)
        axis.plot(rows["tokens"], rows["value"], "o-", color=COLOURS[index], label=TITLES[arm])
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    tokens = sorted(values["tokens"].unique())
    axis.set_xticks(tokens, [f"{n:,}" for n in tokens])
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axis.minorticks_off()
    axis.set_xlabel("tokens")
    axis.set_ylabel("times as fast as SDPA")
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
