"""Trying out settings of a study's arms, at seeds that no preset of it uses."""

import os
import sys
from dataclasses import replace
from typing import Any

import polars as pl
from rich.console import Console

from hexad.core.runner import run_study
from hexad.core.studies import Preset, Study
from hexad.core.terminal import Watcher


def sweep_of(study: Study, config: Any) -> Study:
    """The study without claims and figures at one size, whose cases are what is tried; one seed.

    Args:
        study: whose arms are tried.
        config: of its own kind, with a first seed that its presets keep clear of.
    """
    size = {"full": Preset(config, seeds=1)}
    return replace(study, name=f"{study.name}-sweep", claims=(), figures=(), presets=size)


def run_sweep(sweep: Study, metric: str) -> None:
    """Measure what is not yet measured and print a metric of each arm in each case.

    Results go to `hexad-results`, or to the folder that the first argument of the command line names.
    """
    out = sys.argv[1] if len(sys.argv) > 1 else "hexad-results"
    with Watcher(Console(stderr=True, highlight=False)) as watcher:
        watcher.begin(sweep)
        proof = run_study(sweep, "full", out=out, workers=min(2, os.cpu_count() or 1), watch=watcher.watch)
    found = proof.records.filter(pl.col("metric") == metric).sort("case")
    # Whatever the terminal, no column is left out.
    with pl.Config(
        tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True, tbl_cols=-1, tbl_width_chars=1000
    ):
        print(found.pivot("case", index="arm", values="value"))
