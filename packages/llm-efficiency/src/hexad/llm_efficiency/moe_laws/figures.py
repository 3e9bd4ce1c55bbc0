"""The pictures that the commands write."""

import math
from typing import TYPE_CHECKING

import numpy as np

from hexad.core.plots import COLOURS, new_figure
from hexad.llm_efficiency.moe_laws.curves import isoflop
from hexad.llm_efficiency.moe_laws.fitting import FitResult
from hexad.llm_efficiency.moe_laws.law import Law
from hexad.llm_efficiency.moe_laws.planning import Plan
from hexad.llm_efficiency.moe_laws.quantities import short
from hexad.llm_efficiency.moe_laws.runs import Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_plan(plan: Plan, law: Law) -> "Figure":
    """Loss over active parameters at the plan's compute; dotted beyond memory, the plan marked."""
    curves = isoflop(
        plan.flops, [row.experts for row in plan.rows], inference_tokens=plan.inference_tokens, law=law
    )
    figure, axis = new_figure(7.0, 4.4)
    for place, (curve, row) in enumerate(zip(curves, plan.rows, strict=True)):
        colour = COLOURS[place % len(COLOURS)]
        fits = curve.n_active <= row.most_active
        label = "dense" if row.experts == 1 else f"E = {row.experts:g}"
        axis.plot(curve.n_active[fits], curve.loss[fits], color=colour, label=label)
        axis.plot(curve.n_active[~fits], curve.loss[~fits], ":", color=colour, linewidth=1.2)
        axis.plot(row.n_active, row.loss, "o", color=colour, markersize=7)
    best = plan.best
    axis.plot(best.n_active, best.loss, "o", markersize=14, markerfacecolor="none", color="#333333")
    least = min(curve.loss.min() for curve in curves)
    highest = max(max(row.loss for row in plan.rows), least)
    axis.set_ylim(least - 0.02, highest + 0.6 * max(highest - least, 0.2))
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(lambda value, _: short(value))
    axis.set_xlabel("active parameters")
    axis.set_ylabel("predicted loss, nats per token")
    beyond = "" if math.isinf(plan.memory_bytes) else ", dotted: beyond memory"
    axis.set_title(f"{plan.flops:.3g} FLOPs; dots: the plan{beyond}")
    axis.legend()
    return figure


def draw_residuals(runs: Runs, result: FitResult) -> "Figure":
    """Predicted less observed loss over what was predicted, over N, over D and over E; hollow: held out."""
    predicted = runs.loss + result.residuals
    panels = (
        ("predicted loss", predicted, False),
        ("active parameters", runs.n_active, True),
        ("tokens", runs.tokens, True),
        ("experts", runs.experts, True),
    )
    figure, axes = new_figure(10.0, 5.6, 2, 2, sharey=True)
    counts = np.unique(runs.experts)
    for axis, (name, values, logarithmic) in zip(axes.flat, panels, strict=True):
        for place, count in enumerate(counts):
            colour = COLOURS[place % len(COLOURS)]
            for held_out, face in ((False, colour), (True, "white")):
                own = (runs.experts == count) & (result.held_out == held_out)
                label = f"E = {count:g}" if not held_out else None
                axis.plot(
                    values[own], result.residuals[own], "o", color=colour, markerfacecolor=face, label=label
                )
        axis.axhline(0, color="#888888", linewidth=1)
        if logarithmic:
            axis.set_xscale("log")
        axis.set_xlabel(name)
    axes.flat[-1].set_xticks(counts, [f"{count:g}" for count in counts], minor=False)
    axes.flat[-1].minorticks_off()
    for axis in axes[:, 0]:
        axis.set_ylabel("predicted - observed, nats")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, title="hollow: held out", loc="outside right upper")
    return figure
