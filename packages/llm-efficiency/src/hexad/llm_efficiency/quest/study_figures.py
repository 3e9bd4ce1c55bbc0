"""The pictures of the study's report."""

from typing import TYPE_CHECKING

import polars as pl
from matplotlib.ticker import FixedFormatter, FixedLocator

from hexad.core.plots import COLOURS, new_figure
from hexad.core.studies import Results
from hexad.llm_efficiency.quest.study_arms import case_of
from hexad.llm_efficiency.quest.study_language import Config

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "quest": "QuEST",
    "no-hadamard": "no Hadamard",
    "no-trust": "no trust mask",
    "absmax": "AbsMax-STE",
    "lsq": "LSQ",
    "fp32": "fp32",
}


def _by_width(results: Results, metric: str, title: str) -> "Figure | None":
    """One line an arm over the widths, each seed a point."""
    config: Config = results.config
    widths = sorted({*config.widths, *config.ordered}, reverse=True)
    cases = {case_of(bits): place for place, bits in enumerate(widths)}
    rows = results.records.filter((pl.col("metric") == metric) & pl.col("case").is_in(list(cases)))
    if rows.is_empty():
        return None
    figure, axis = new_figure(6.4, 4.2)
    for colour, (arm, name) in zip(COLOURS, TITLES.items(), strict=False):
        mine = rows.filter(pl.col("arm") == arm)
        if mine.is_empty():
            continue
        means = mine.group_by("case").agg(pl.col("value").mean())
        points = sorted((cases[case], value) for case, value in means.iter_rows())
        style = "--" if arm == "fp32" else "-"
        axis.plot(*zip(*points, strict=True), style, marker="o", color=colour, label=name)
        places = [cases[case] for case in mine["case"]]
        axis.plot(places, mine["value"].to_list(), ".", color=colour, alpha=0.4, markersize=4)
    axis.xaxis.set_major_locator(FixedLocator(list(cases.values())))
    axis.xaxis.set_major_formatter(FixedFormatter([case.upper() for case in cases]))
    axis.set_ylabel(title)
    axis.legend()
    return figure


def losses(results: Results) -> "Figure | None":
    """Test loss of every arm by width."""
    return _by_width(results, "loss", "test loss [nats/byte]")


def alignments(results: Results) -> "Figure | None":
    """Gradient cosine half-way through training, by width."""
    return _by_width(results, "alignment", "cosine to the full-precision gradient")
