"""The pictures of the study's report."""

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from hexad.core.plots import COLOURS, new_figure
from hexad.core.studies import Results
from hexad.llm_efficiency.moe_laws.quantities import short

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAWS = {
    "joint": "joint law",
    "chinchilla": "Chinchilla for each E",
    "separable": "no interactions",
    "raw-experts": "E does not saturate",
    "mean-huber": "mean of Huber losses",
}
TRAINED = {"dense": 1, "switch-2": 2, "switch-4": 4, "switch-8": 8}


def _ladder(results: Results, arm: str, seed: int = 0) -> Any | None:
    folder = results.folders.get((arm, seed))
    path = folder / "ladder.npz" if folder is not None else None
    return np.load(path) if path is not None and path.is_file() else None


def _token_axis(axis: Any, tokens: np.ndarray) -> None:
    """Logarithmic, marked at the counts that were trained."""
    axis.set_xscale("log")
    counts = np.unique(tokens)
    axis.set_xticks(counts, [short(count) for count in counts])
    axis.minorticks_off()


def ladder(results: Results) -> "Figure | None":
    """Loss over tokens, one panel a width: what was trained, and what the joint law says (seed 0)."""
    stored = _ladder(results, "joint")
    if stored is None:
        return None
    sizes, counts = np.unique(stored["n_active"]), np.unique(stored["experts"])
    figure, axes = new_figure(3.1 * len(sizes), 3.4, 1, len(sizes), sharey=True, squeeze=False)
    for axis, size in zip(axes[0], sizes, strict=True):
        for colour, count in zip(COLOURS, counts, strict=False):
            own = (stored["n_active"] == size) & (stored["experts"] == count)
            order = np.argsort(stored["tokens"][own])
            tokens, shown = stored["tokens"][own][order], stored["held_out"][own][order]
            loss, predicted = stored["loss"][own][order], stored["predicted"][own][order]
            axis.plot(tokens, predicted, "-", color=colour, linewidth=1.2)
            axis.plot(tokens[~shown], loss[~shown], "o", color=colour, label=f"E = {count:g}")
            axis.plot(tokens[shown], loss[shown], "o", color=colour, markerfacecolor="white")
        _token_axis(axis, stored["tokens"])
        axis.set_title(f"N = {size / 1e3:.0f}k")
        axis.set_xlabel("training bytes")
    axes[0][0].set_ylabel("nats per held-out byte")
    axes[0][-1].legend(title="hollow: never fitted")
    return figure


def predictions(results: Results) -> "Figure | None":
    """Predicted less trained loss of every run held out, one column a law, over all seeds."""
    columns = []
    for arm, title in LAWS.items():
        found = [_ladder(results, name, seed) for name, seed in results.folders if name == arm]
        errors = [
            (stored["predicted"] - stored["loss"])[stored["held_out"]]
            for stored in found
            if stored is not None
        ]
        if errors:
            columns.append((title, np.concatenate(errors)))
    if not columns:
        return None
    figure, axis = new_figure(7.0, 3.8)
    for place, (_, errors) in enumerate(columns):
        spread = np.linspace(-0.25, 0.25, len(errors)) if len(errors) > 1 else np.zeros(1)
        axis.plot(place + spread, errors, "o", color=COLOURS[place], alpha=0.7)
    axis.axhline(0, color="#888888", linewidth=1)
    axis.set_xticks(range(len(columns)), [title for title, _ in columns], fontsize=8)
    axis.set_ylabel("predicted - trained, nats per byte")
    return figure


def experts(results: Results) -> "Figure | None":
    """Loss of each MoE less that of the dense model of equal width and tokens, mean over widths and seeds."""
    losses = results.records.filter((pl.col("metric") == "loss") & pl.col("arm").is_in(list(TRAINED)))
    dense = losses.filter(pl.col("arm") == "dense").select("seed", "case", base="value")
    tokens = pl.col("case").str.split("/").list.last().cast(pl.Int64).alias("tokens")
    rows = (
        losses.filter(pl.col("arm") != "dense")
        .join(dense, on=["seed", "case"])
        .group_by("arm", tokens)
        .agg((pl.col("value") - pl.col("base")).mean())
        .sort("tokens")
    )
    if rows.is_empty():
        return None
    figure, axis = new_figure(6.5, 3.8)
    for colour, (arm, count) in zip(COLOURS, TRAINED.items(), strict=False):
        own = rows.filter(pl.col("arm") == arm)
        if not own.is_empty():
            axis.plot(own["tokens"], own["value"], "o-", color=colour, label=f"E = {count}")
    axis.axhline(0, color="#888888", linewidth=1)
    _token_axis(axis, rows["tokens"].to_numpy())
    axis.set_xlabel("training bytes")
    axis.set_ylabel("loss - loss of dense, nats per byte")
    axis.legend()
    return figure
