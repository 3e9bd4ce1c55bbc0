"""The rate that each arm of the study trains best at: `python -m hexad.federated.fedswa.sweep`.

The most uneven partition, half of the rounds, a seed that no preset of the study uses, the same rates for all
arms. An argument names another folder of results than `hexad-results`. The rates are then written into
`study_arms`.
"""

from hexad.core.sweeps import run_sweep, sweep_of
from hexad.federated.fedswa.study import STUDY
from hexad.federated.fedswa.study_digits import Config

CONFIG = Config(
    partitions=("0.1",), rounds=40, rates=(0.03, 0.1, 0.3, 1.0), quadratic_rounds=0, first_seed=1000
)
SWEEP = sweep_of(STUDY, CONFIG)

if __name__ == "__main__":
    run_sweep(SWEEP, "accuracy")
