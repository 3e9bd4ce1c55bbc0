"""The figures of the study of GAS."""

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from hexad.core.plots import new_figure
from hexad.core.studies import Results
from hexad.rl_graph.gas.figures import draw_maze
from hexad.rl_graph.gas.mazes import make_maze
from hexad.rl_graph.gas.study_arms import CLONING, METHOD, NO_GRAPH, NO_TE, RAW

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    METHOD: "GAS",
    NO_TE: "without filter",
    RAW: "raw coordinates",
    NO_GRAPH: "no graph",
    CLONING: "GCBC",
}


def draw_success(results: Results) -> "Figure | None":
    """Mean success of each arm in each case, a dot a seed; below it the embedding's rank correlation."""
    cases = [case.name for case in results.config.cases]
    table = results.records.filter(pl.col("metric") == "success").with_columns(
        pl.col("case").str.split("/").list.first().alias("maze")
    )
    seeds = table.group_by("arm", "maze", "seed").agg(pl.col("value").mean())
    if seeds.is_empty():
        return None
    figure, axis = new_figure(max(7.5, 1.5 + 1.8 * len(cases)), 3.8)
    width = 0.8 / len(TITLES)
    for place, (arm, title) in enumerate(TITLES.items()):
        middle = np.arange(len(cases)) + (place - (len(TITLES) - 1) / 2) * width
        found = [seeds.filter(arm=arm, maze=case)["value"].to_numpy() for case in cases]
        means = [values.mean() if len(values) else np.nan for values in found]
        bars = axis.bar(middle, means, width * 0.92, label=title)
        for x, values in zip(middle, found, strict=True):
            axis.plot([x] * len(values), values, ".", color="black", markersize=4)
        axis.bar_label(bars, [f"{mean:.0f}" for mean in means], fontsize=7, padding=6)
    quality = results.records.filter(metric="spearman").group_by("case").agg(pl.col("value").mean())
    known = dict(quality.iter_rows())
    labels = [f"{case}\nembedding {known[case]:.2f}" if case in known else case for case in cases]
    axis.set_xticks(range(len(cases)), labels)
    axis.set_xlim(-0.6, len(cases) - 0.4)
    axis.set_ylim(0, 112)
    axis.set_ylabel("success [%]")
    axis.grid(visible=False, axis="x")
    axis.legend(ncols=len(TITLES), loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=8)
    return figure


def draw_traces(results: Results) -> "Figure | None":
    """The first episode of each task of GAS at seed 0."""
    folder = results.folders.get((METHOD, 0))
    kept = [case for case in results.config.cases if folder and (folder / f"{case.name}.npz").is_file()]
    if folder is None or not kept:
        return None
    figure, axes = new_figure(13, 2.6 * len(kept), len(kept), 5, squeeze=False)
    for row, case in zip(axes, kept, strict=True):
        env = make_maze(case.maze)
        walls = getattr(env.unwrapped, "maze_map") == 1  # noqa: B009 - of OGBench's own class
        env.close()
        with np.load(folder / f"{case.name}.npz", allow_pickle=False) as file:
            for place, axis in enumerate(row):
                steps = int(file["steps"][place])
                ended = f"{steps} moves" if file["success"][place] else "not reached"
                draw_maze(
                    walls,
                    nodes=file["nodes"],
                    trace=file["traces"][: steps + 1, place],
                    goal=file["goals"][place],
                    title=f"{case.name}, task {file['tasks'][place]}: {ended}",
                    axis=axis,
                )
    return figure
