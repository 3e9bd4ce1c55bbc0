"""Does a power before the smoothing find global optima, and against whom does that help?"""

import functools
import importlib.util

from hexad.core.studies import Arm, Figure, Metric, Preset, Role, Study
from hexad.rl_graph.gs_poweropt import study_figures
from hexad.rl_graph.gs_poweropt.study_claims import CLAIMS
from hexad.rl_graph.gs_poweropt.study_measures import Config, run

# Said when the study is loaded, not after the first arms have run.
for _needed in ("cma", "nevergrad", "sklearn", "statsmodels"):
    if importlib.util.find_spec(_needed) is None:
        raise ModuleNotFoundError(f"No module named {_needed!r}", name=_needed)


def _arm(name: str, title: str, role: Role) -> Arm:
    return Arm(name, title, role, functools.partial(run, name=name))


STUDY = Study(
    name="gs-poweropt",
    question=(
        "Does raising an objective to a power before it is smoothed find the global optimum, and what does "
        "the method give and cost beside CMA-ES, nevergrad, annealing and differential evolution?"
    ),
    arms=(
        _arm("gspower", "EPGS with centred weights", "method"),
        _arm("paper", "EPGS, the paper's own update", "ablation"),
        _arm("pgs", "PGS, the paper's own update (two-log alone)", "ablation"),
        _arm("smoothing", "smoothing without a power (N to 0)", "baseline"),
        _arm("cma", "CMA-ES with restarts (pycma)", "baseline"),
        _arm("nevergrad", "NGOpt, nevergrad's default", "baseline"),
        _arm("dual-annealing", "dual annealing (SciPy)", "baseline"),
        _arm("differential-evolution", "differential evolution (SciPy)", "baseline"),
        _arm("random", "random search", "baseline"),
    ),
    metrics=(
        Metric("mse", "MSE to the peak", better="lower", digits=4),
        Metric("at_global", "starts at the peak", better="higher"),
        Metric("settled", "error, of sigma / sqrt(K)", digits=2),
        Metric("ess", "effective samples", digits=2),
        Metric("success", "attacks that succeed", better="higher"),
        Metric("norm", "norm of attacks", better="lower"),
        Metric("time", "time of an attack", "of gspower's", better="lower", digits=2),
        Metric("hit", "sunspots: hits", better="higher"),
        Metric("r2", "sunspots: R^2", better="higher", digits=4),
        Metric("log_value", "log10 of the value", better="lower"),
        Metric("score", "score of a setting (sweep alone)", better="lower", digits=4),
    ),
    claims=CLAIMS,
    presets={
        "tiny": Preset(
            Config(
                powers=(1.0, 4.0), pgs_powers=(30.0,), starts=2, steps=20, deep_powers=(), images=2,
                queries=60, timings=1, repeats=1, evaluations=60,
            ),
            seeds=1,
        ),
        "quick": Preset(Config(starts=10, deep_powers=(), images=3, timings=3, repeats=0), seeds=1),
        "full": Preset(Config(), seeds=5),
    },
    figures=(
        Figure("sweep", "Error to the global peak by N", study_figures.sweep),
        Figure("attacks", "Norm and time of attacks on a classifier of digits", study_figures.attacks),
        Figure("digits", "Attacked digits", study_figures.digits),
        Figure("fits", "Where the method loses", study_figures.fits),
    ),
    notes=(
        "two-log (the paper's two peaks, sharp at -0.5, blunt at 0.5): sigma 1, rate 0.1, K = 100 and 500 "
        "steps in two dimensions, K = 2000 and 1000 steps in five, from uniform starts in [-1, 1]; the MSE, "
        "a variable, is that of the mean of the last 50 iterates, and a start is at the peak within 0.02. "
        "No iterate is chosen by what is known of the optimum. The iterates' error is also given in units "
        "of sigma / sqrt(K), which is all the accuracy that a fixed sigma promises. Columns without a case "
        "mean over N; the claims and the figure are by N. PGS takes f^N with f = 10 - fun and N = 10, 30, "
        "55. Attacks: scikit-learn's digits (8 x 8, in [0, 1]), an MLP (64, 32) fitted anew for each seed, "
        "images of its test quarter that it names rightly, the least likely class as target, 3000 queries; "
        "the loss is the paper's, max(margin, -0.001) + norm, and pixels may leave [0, 1] as they may "
        "there. The norm is that of the smallest point asked for that fooled the classifier; a failed "
        "attack counts with the norm of its image. Time is that of an attack over that of one by the "
        "method, in turns, CMA-ES being asked in batches. Fits: the two frequencies (1 to 49 cycles a "
        "century) that explain most of the yearly sunspots 1700 to 2008 (statsmodels), a hit being an R^2 "
        "within 0.0005 of the best, 0.42506; Rastrigin and Griewank in ten dimensions, their optima moved "
        "by the seed, values below 1e-6 counting as that. All arms have 4000 evaluations there, through one "
        "counter that stops them; the smoothing arms leave 100 a variable of these to Nelder-Mead and "
        "divide values by their deviation (scale='std'); CMA-ES begins again with twice the population "
        "where it stops. NGOpt takes 13 s a fit and is left out of these. Eight settings were tried for "
        "each arm on each problem, on three images and four fits of a seed that no preset uses (python -m "
        "hexad.rl_graph.gs_poweropt.sweep), and the best kept; uniform random search has none. The paper's "
        "figures are of larger networks and d = 500; these say nothing of them."
    ),
)  # fmt: skip
