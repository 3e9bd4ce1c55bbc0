"""The settings that each arm of the study does best with: `python -m hexad.rl_graph.gs_poweropt.sweep`.

Eight settings an arm and problem, three images and four fits, a seed that no preset of the study uses. An
argument names another folder of results than `hexad-results`. It prints `score`, which is the lower the
better: the norm of attacks, what two frequencies leave unexplained, log10 of the values. The numbers of the
best settings are then written into `study_arms.TUNED`.
"""

from hexad.core.sweeps import run_sweep, sweep_of
from hexad.rl_graph.gs_poweropt.study import STUDY
from hexad.rl_graph.gs_poweropt.study_measures import Config

CONFIG = Config(starts=0, images=3, repeats=4, first_seed=1000, grid=True)
SWEEP = sweep_of(STUDY, CONFIG)

if __name__ == "__main__":
    run_sweep(SWEEP, "score")
