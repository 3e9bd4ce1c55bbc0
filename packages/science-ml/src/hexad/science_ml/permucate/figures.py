"""The picture of a ranking: importances with intervals."""

from typing import TYPE_CHECKING

import numpy as np

from hexad.core.plots import COLOURS, new_figure
from hexad.core.validation import check_range
from hexad.science_ml.permucate.inference import Adjustment, Importances, adjust

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_importances(
    result: Importances, limit: int = 30, confidence: float = 0.95, adjustment: Adjustment = "none"
) -> "Figure":
    """The `limit` largest importances, largest on top; filled where the one-sided test rejects at 5 %.

    With an `adjustment` for many tests, by its p-values.
    """
    check_range("limit", limit, 1)
    order = np.argsort(-result.importances, kind="stable")[:limit]
    low, high = result.estimates.interval(confidence)[order].T
    values, place = result.importances[order], np.arange(len(order))[::-1]
    figure, axes = new_figure(7.5, 1.3 + 0.3 * len(order))
    axes.hlines(place, low, high, color=COLOURS[0], linewidth=2.0)
    found = adjust(result.pvalues, adjustment)[order] < 0.05
    p = "p" if adjustment == "none" else f"p ({adjustment})"
    for which, face, label in ((found, COLOURS[0], f"{p} < 0.05"), (~found, "white", f"{p} ≥ 0.05")):
        axes.plot(
            values[which],
            place[which],
            "o",
            color=COLOURS[0],
            markerfacecolor=face,
            label=label,
            markersize=7,
        )
    axes.axvline(0, color="#444444", linewidth=1)
    axes.set_yticks(place, [_short(result.names[j]) for j in order], parse_math=False)
    axes.set_ylim(-0.7, len(order) - 0.3)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"importance for the treatment effect, {confidence:.0%} interval")
    axes.legend(loc="lower right")
    more = len(result.names) - len(order)
    axes.set_title(
        "Drivers of heterogeneity" + (f" (first {len(order)} of {len(result.names)})" if more else "")
    )
    return figure


def _short(name: str) -> str:
    return name if len(name) <= 32 else name[:31] + "…"
