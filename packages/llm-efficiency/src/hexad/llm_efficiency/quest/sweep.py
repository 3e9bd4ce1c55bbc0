"""The learning rate that each arm of the study trains best at: `python -m hexad.llm_efficiency.quest.sweep`.

Two bits, half the length, a seed that no preset of the study uses. An argument names another folder of
results than `hexad-results`. The rates are then written into `study_arms`.
"""

import os
import sys
from dataclasses import replace

import polars as pl
from rich.console import Console

from hexad.core.runner import run_study
from hexad.core.studies import Preset
from hexad.core.terminal import Watcher
from hexad.llm_efficiency.quest.study import STUDY
from hexad.llm_efficiency.quest.study_language import Config

CONFIG = Config(widths=(2,), steps=300, digits_epochs=0, rates=(3e-4, 1e-3, 3e-3, 1e-2), first_seed=1000)
SWEEP = replace(STUDY, name="quest-sweep", claims=(), figures=(), presets={"full": Preset(CONFIG, seeds=1)})


def main() -> None:
    """Measure what is not yet measured and print the test loss of each arm at each rate."""
    out = sys.argv[1] if len(sys.argv) > 1 else "hexad-results"
    with Watcher(Console(stderr=True, highlight=False)) as watcher:
        watcher.begin(SWEEP)
        proof = run_study(SWEEP, "full", out=out, workers=min(2, os.cpu_count() or 1), watch=watcher.watch)
    losses = proof.records.filter(pl.col("metric") == "loss").sort("case")
    with pl.Config(tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True):
        print(losses.pivot("case", index="arm", values="value"))


if __name__ == "__main__":
    main()
