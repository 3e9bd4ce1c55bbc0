"""The rate that each arm of the study trains best at: `python -m hexad.federated.fedswa.sweep`.

The most uneven partition, half of the rounds, a seed that no preset of the study uses, the same rates for all
arms. An argument names another folder of results than `hexad-results`. The rates are then written into
`study_arms`.
"""

import os
import sys
from dataclasses import replace

import polars as pl
from rich.console import Console

from hexad.core.runner import run_study
from hexad.core.studies import Preset
from hexad.core.terminal import Watcher
from hexad.federated.fedswa.study import STUDY
from hexad.federated.fedswa.study_digits import Config

CONFIG = Config(
    partitions=("0.1",), rounds=40, rates=(0.03, 0.1, 0.3, 1.0), quadratic_rounds=0, first_seed=1000
)
SWEEP = replace(STUDY, name="fedswa-sweep", claims=(), figures=(), presets={"full": Preset(CONFIG, seeds=1)})


def main() -> None:
    """Measure what is not yet measured and print the accuracy of each arm at each rate."""
    out = sys.argv[1] if len(sys.argv) > 1 else "hexad-results"
    with Watcher(Console(stderr=True, highlight=False)) as watcher:
        watcher.begin(SWEEP)
        proof = run_study(SWEEP, "full", out=out, workers=min(2, os.cpu_count() or 1), watch=watcher.watch)
    found = proof.records.filter(pl.col("metric") == "accuracy").sort("case")
    with pl.Config(tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True):
        print(found.pivot("case", index="arm", values="value"))


if __name__ == "__main__":
    main()
