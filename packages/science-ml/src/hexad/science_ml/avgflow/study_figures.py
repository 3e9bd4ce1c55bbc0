"""Pictures of avgflow's study."""

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure

from hexad.core.plots import COLOURS, new_figure
from hexad.core.studies import Results
from hexad.science_ml.avgflow.ensembles import with_conformers
from hexad.science_ml.avgflow.figures import draw_overlays
from hexad.science_ml.avgflow.library import load_ensembles
from hexad.science_ml.avgflow.molecules import read_molecule

TITLES = {"avg": "AvgFlow", "cond-ot": "Conditional OT", "kabsch": "Kabsch alignment"}


def draw_noise(results: Results) -> MatplotlibFigure | None:
    """The noise of the targets over t."""
    chosen = results.records.filter(pl.col("metric") == "target_noise").with_columns(
        t=pl.col("case").str.extract(r"t=([0-9.]+)").cast(pl.Float64)
    )
    if chosen.is_empty():
        return None
    figure, axis = new_figure(6.0, 3.6)
    for colour, (arm, title) in zip(COLOURS, TITLES.items(), strict=False):
        rows = chosen.filter(pl.col("arm") == arm).group_by("t").agg(pl.col("value").mean()).sort("t")
        if len(rows):
            axis.plot(rows["t"].to_numpy(), rows["value"].to_numpy(), "o-", color=colour, label=title)
    axis.set_xlabel("t")
    axis.set_ylabel("E|u − E[u]|² / E|u|²")
    axis.set_ylim(-0.02, 1)
    axis.legend(loc="best")
    return figure


def draw_learning(results: Results) -> MatplotlibFigure | None:
    """Losses over the steps, and the recall of each small network in 20 steps."""
    figure, (left, right) = new_figure(10.0, 3.8, columns=2)
    drawn = False
    for colour, (arm, title) in zip(COLOURS, TITLES.items(), strict=False):
        paths = [folder / "loss.npy" for (name, _), folder in results.folders.items() if name == arm]
        curves = [np.load(path) for path in paths if path.exists()]
        if not curves:
            continue
        drawn = True
        mean = np.mean(curves, axis=0)
        width = max(len(mean) // 40, 1)
        smooth = np.convolve(mean, np.ones(width) / width, mode="valid")
        left.plot(np.arange(len(smooth)) + width, smooth, color=colour, label=title)
    if not drawn:
        return None
    left.set_yscale("log")
    left.set_xlabel("step")
    left.set_title("Loss, Å²")
    left.legend(loc="best")
    _bars(right, results.records)
    return figure


def _bars(axis: Axes, records: pl.DataFrame) -> None:
    rows = (
        records.filter(pl.col("metric") == "amr_r", ~pl.col("case").str.starts_with("shipped"))
        .with_columns(setting=pl.col("case").str.replace(r"/m\d+$", ""))
        .group_by("arm", "setting")
        .agg(pl.col("value").mean())
        .sort("setting", "arm")
    )
    names = [f"{TITLES.get(arm, arm)}: {setting}" for arm, setting, _ in rows.iter_rows()]
    colours = [COLOURS[list(TITLES).index(arm)] if arm in TITLES else "#999999" for arm in rows["arm"]]
    axis.barh(names, rows["value"].to_numpy(), color=colours)
    axis.invert_yaxis()
    axis.tick_params(axis="y", labelsize=6.5)
    axis.set_title("AMR-R, Å")


def draw_shipped(results: Results) -> MatplotlibFigure | None:
    """Samples of the shipped base network on test molecules."""
    folders = [folder for (arm, seed), folder in results.folders.items() if (arm, seed) == ("shipped", 0)]
    paths = [folder / "base.npz" for folder in folders if (folder / "base.npz").exists()]
    if not paths:
        return None
    with np.load(paths[0], allow_pickle=False) as file:
        names = [str(name) for name in file["arr_0"]]
        frames = [file[f"arr_{place + 1}"] for place in range(len(names))]
    known = {ensemble.smiles: ensemble for ensemble in load_ensembles(12 * len(names) + 50)}
    pairs = [(name, frame) for name, frame in zip(names, frames, strict=True) if name in known and len(frame)]
    if not pairs:
        return None
    samples = [with_conformers(read_molecule(name), frame) for name, frame in pairs]
    return draw_overlays(samples, [known[name].molecule() for name, _ in pairs], titles=[n for n, _ in pairs])
