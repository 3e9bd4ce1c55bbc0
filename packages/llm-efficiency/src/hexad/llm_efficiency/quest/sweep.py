"""The learning rate that each arm of the study trains best at: `python -m hexad.llm_efficiency.quest.sweep`.

Two bits, half the length, a seed that no preset of the study uses. An argument names another folder of
results than `hexad-results`. The rates are then written into `study_arms`.
"""

from hexad.core.sweeps import run_sweep, sweep_of
from hexad.llm_efficiency.quest.study import STUDY
from hexad.llm_efficiency.quest.study_language import Config

CONFIG = Config(widths=(2,), steps=300, digits_epochs=0, rates=(3e-4, 1e-3, 3e-3, 1e-2), first_seed=1000)
SWEEP = sweep_of(STUDY, CONFIG)

if __name__ == "__main__":
    run_sweep(SWEEP, "loss")
