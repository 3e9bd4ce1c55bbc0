"""The pictures of the study's report."""

from typing import TYPE_CHECKING

import polars as pl
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from hexad.core.plots import COLOURS, new_figure
from hexad.core.studies import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {
    "janus": "Janus, secp256k1",
    "janus-ristretto": "Janus, ristretto255",
    "secagg-plus": "SecAgg+ (4 log n neighbours)",
    "secagg": "SecAgg (n neighbours)",
}


def _rows(results: Results) -> pl.DataFrame:
    """The costs with the columns n and l beside their case."""
    rows = results.records.filter(pl.col("case").str.contains(r"^n\d+/l\d+$"))
    parts = rows["case"].str.extract_groups(r"^n(?<n>\d+)/l(?<l>\d+)$").struct.unnest()
    return rows.with_columns(parts.select(pl.all().cast(pl.Int64)))


def _draw(axis: "Axes", rows: pl.DataFrame, metric: str, along: str) -> None:
    for colour, (arm, title) in zip(COLOURS, TITLES.items(), strict=False):
        mine = rows.filter((pl.col("arm") == arm) & (pl.col("metric") == metric))
        if mine.is_empty():
            continue
        means = mine.group_by(along).agg(pl.col("value").mean()).sort(along)
        axis.plot(means[along].to_list(), means["value"].to_list(), "o-", color=colour, label=title)
    axis.set_xscale("log")
    axis.set_yscale("log")
    places = sorted(rows[along].unique().to_list())
    axis.xaxis.set_major_locator(FixedLocator(places))
    axis.xaxis.set_major_formatter(FixedFormatter([f"{place:,}" for place in places]))
    axis.xaxis.set_minor_locator(NullLocator())


def by_clients(results: Results) -> "Figure | None":
    """A client's seconds and bytes by the number of clients, at one length."""
    rows = _rows(results)
    lengths = rows.group_by("l").agg(pl.col("n").n_unique()).filter(pl.col("n") > 1)
    if lengths.is_empty():
        return None
    length = lengths["l"].min()
    figure, axes = new_figure(9.0, 3.8, columns=2)
    shown = {"seconds": "seconds of a core", "overhead": "bytes beside the vectors"}
    for axis, (metric, title) in zip(axes, shown.items(), strict=True):
        _draw(axis, rows.filter(pl.col("l") == length), metric, "n")
        axis.set_xlabel("clients")
        axis.set_ylabel(f"{title}, {length} numbers")
    axes[0].legend()
    return figure


def by_length(results: Results) -> "Figure | None":
    """A client's seconds and bytes by the length of the update, at one number of clients."""
    rows = _rows(results)
    counts = rows.group_by("n").agg(pl.col("l").n_unique()).filter(pl.col("l") > 1)
    if counts.is_empty():
        return None
    n = counts["n"].min()
    figure, axes = new_figure(9.0, 3.8, columns=2)
    shown = {"seconds": "seconds of a core", "bytes": "bytes up and down"}
    for axis, (metric, title) in zip(axes, shown.items(), strict=True):
        _draw(axis, rows.filter(pl.col("n") == n), metric, "l")
        axis.set_xlabel(f"numbers in an update ({n} clients)")
        axis.set_ylabel(title)
    axes[0].legend()
    return figure


def tampering(results: Results) -> "Figure | None":
    """The share of each attack that is caught, by what the client checks."""
    rows = results.records.filter(pl.col("metric") == "caught")
    if rows.is_empty():
        return None
    arms = {"janus": "both commitments", "one-commitment": "S_0's alone", "trusting": "none"}
    names = sorted(rows["case"].unique().to_list())
    figure, axis = new_figure(7.5, 5.2)
    for place, (arm, title) in enumerate(arms.items()):
        mine = rows.filter(pl.col("arm") == arm).group_by("case").agg(pl.col("value").mean())
        shares = dict(mine.iter_rows())
        axis.barh(
            [k + 0.27 * (place - 1) for k in range(len(names))],
            [shares.get(name, 0.0) for name in names],
            height=0.25,
            color=COLOURS[place],
            label=title,
        )
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_xlabel("share of the cheating that the client refuses")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), title="checked against")
    return figure
