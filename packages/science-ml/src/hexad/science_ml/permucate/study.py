"""Does conditional permutation find drivers of heterogeneity with less variance and more power than LOCO?"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float
from matplotlib.figure import Figure as MatplotlibFigure
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from hexad.core.plots import COLOURS, new_figure
from hexad.core.studies import Arm, Claim, Figure, Measurement, Metric, Preset, Results, Study, Trial
from hexad.science_ml.permucate.estimator import PermuCATE
from hexad.science_ml.permucate.inference import Importances
from hexad.science_ml.permucate.packaged import load_acic_covariates, load_nhefs, require_extra
from hexad.science_ml.permucate.simulations import (
    Sample,
    equicorrelated_data,
    linear_data,
    null_data,
    semi_synthetic,
)

# Without the extra's data there is nothing to measure; `hexad tour` then leaves the study out.
require_extra()

PERMUCATE, LOCO, PERMUTATION = "permucate", "loco", "permutation"
LEVEL = 0.05
HEADLINE_N = 200
SOBOL = np.array([0.75, 3.0, 0.75, 0.0, 0.0, 0.0])


@dataclass(frozen=True)
class Config:
    """Size of the study; every repetition is an independent sample.

    Args:
        sizes: rows of the six-covariate simulation (LD).
        repetitions: of each size and of the constant effect, in a trial.
        large: repetitions of 100 correlated covariates (HL) and of the ACIC covariates, in a trial.
        reseeds: seeds on NHEFS in a trial, whose rankings are compared with each other.
        permutations: draws of each covariate.
    """

    sizes: tuple[int, ...]
    repetitions: int
    large: int
    reseeds: int
    permutations: int = 50


def measure(trial: Trial) -> Iterator[Measurement]:
    """All simulations and NHEFS by the arm's measure; samples, folds and fits are the same for all arms."""
    config: Config = trial.config
    parts = [
        *((f"LD {n}", _linear, n) for n in config.sizes),
        ("constant effect", _constant, HEADLINE_N),
        ("HL", _correlated, 500),
        ("ACIC", _acic, 800),
        ("NHEFS", _nhefs, 0),
    ]
    for place, (name, part, n) in enumerate(parts):
        trial.progress(place / len(parts), name)
        yield from part(trial, n)


def _importances(trial: Trial, X: Any, y: Any, treatment: Any, seed: int) -> Importances:
    settings = PermuCATE(n_permutations=trial.config.permutations, random_state=seed)
    with warnings.catch_warnings():
        # Samples of 100 rows have small arms by design.
        warnings.simplefilter("ignore", UserWarning)
        return settings.measure(X, y, treatment, (trial.arm,))[trial.arm]  # ty: ignore[invalid-argument-type]


def _seed(trial: Trial, *key: int) -> int:
    """Another sample for every trial and repetition, the same for all arms."""
    return int(np.random.SeedSequence([trial.seed, *key]).generate_state(1)[0])


def _tests(sample: Sample, result: Importances, case: str) -> Iterator[Measurement]:
    """Shares of modifiers and of other covariates whose p-value is below 0.05, and the ranking's AUROC."""
    rejected = result.pvalues < LEVEL
    yield Measurement("power", float(rejected[sample.modifiers].mean()), case)
    yield Measurement("false_positives", float(rejected[~sample.modifiers].mean()), case)
    yield Measurement("auroc", float(roc_auc_score(sample.modifiers, result.importances)), case)


def _linear(trial: Trial, n: int) -> Iterator[Measurement]:
    repetitions = trial.config.repetitions
    found = np.empty((repetitions, 6))
    for number in range(repetitions):
        seed = _seed(trial, 1, n, number)
        sample = linear_data(n, seed)
        result = _importances(trial, sample.X, sample.y, sample.treatment, seed)
        found[number] = result.importances
        yield from _tests(sample, result, f"LD{n}/s{trial.seed}r{number:02}")
    # Squares about the trial's own mean, so that their mean over repetitions is the unbiased variance.
    squares = (found - found.mean(axis=0)) ** 2 * repetitions / (repetitions - 1)
    for number in range(repetitions):
        case = f"LD{n}/s{trial.seed}r{number:02}"
        yield Measurement("null_variance", float(squares[number, 3:].mean()), case)
        yield Measurement("driver_variance", float(squares[number, 1]), case)
        yield Measurement("squared_error", float(((found[number] - SOBOL) ** 2).mean()), case)


def _constant(trial: Trial, n: int) -> Iterator[Measurement]:
    for number in range(trial.config.repetitions):
        seed = _seed(trial, 2, n, number)
        sample = null_data(n, seed)
        result = _importances(trial, sample.X, sample.y, sample.treatment, seed)
        share = float((result.pvalues < LEVEL).mean())
        yield Measurement("false_positives", share, f"constant/s{trial.seed}r{number:02}")


def _correlated(trial: Trial, n: int) -> Iterator[Measurement]:
    for number in range(trial.config.large):
        seed = _seed(trial, 3, n, number)
        sample = equicorrelated_data(n, seed)
        result = _importances(trial, sample.X, sample.y, sample.treatment, seed)
        yield from _tests(sample, result, f"HL/s{trial.seed}r{number:02}")


def _acic(trial: Trial, n: int) -> Iterator[Measurement]:
    covariates = load_acic_covariates().to_numpy().astype(float)
    for number in range(trial.config.large):
        seed = _seed(trial, 4, n, number)
        rows = np.random.default_rng(seed).choice(len(covariates), n, replace=False)
        sample = semi_synthetic(covariates[rows], seed)
        result = _importances(trial, sample.X, sample.y, sample.treatment, seed)
        yield from _tests(sample, result, f"ACIC/s{trial.seed}r{number:02}")


def _nhefs(trial: Trial, n: int) -> Iterator[Measurement]:
    frame = load_nhefs()
    X, y = frame.drop("qsmk", "wt82_71"), frame["wt82_71"].to_numpy()
    results = [
        _importances(trial, X, y, frame["qsmk"].to_numpy(), _seed(trial, 5, number))
        for number in range(trial.config.reseeds)
    ]
    mean: Float[np.ndarray, " p"] = np.mean([result.importances for result in results], axis=0)
    for name, value in zip(results[0].names, mean, strict=True):
        yield Measurement("importance", float(value), f"NHEFS/{name}")
    for first, second in combinations(range(len(results)), 2):
        agreement = spearmanr(results[first].importances, results[second].importances).statistic
        yield Measurement("stability", float(agreement), f"NHEFS/s{trial.seed}p{first}-{second}")


def _by_size(records: pl.DataFrame, arm: str, metric: str) -> list[tuple[int, float]]:
    chosen = records.filter((pl.col("arm") == arm) & (pl.col("metric") == metric))
    sized = chosen.with_columns(n=pl.col("case").str.extract(r"^LD(\d+)/").cast(pl.Int64)).drop_nulls("n")
    return list(sized.group_by("n").agg(pl.col("value").mean()).sort("n").iter_rows())


def draw_sizes(results: Results) -> MatplotlibFigure | None:
    """Variance, power and false positives over the size of the sample."""
    figure, axes = new_figure(11.5, 3.8, columns=3)
    panels = (
        ("null_variance", "Deviation of nulls"),
        ("power", "Power"),
        ("false_positives", "False positives"),
    )
    drawn = False
    for panel, (metric, title) in zip(axes, panels, strict=True):
        for colour, arm in zip(COLOURS, STUDY.arms, strict=False):
            rows = _by_size(results.records, arm.name, metric)
            if not rows:
                continue
            drawn = True
            sizes, values = np.array(rows).T
            values = np.sqrt(values) if metric == "null_variance" else values
            panel.plot(sizes, values, "o-", color=colour, label=arm.title)
        panel.set_xscale("log")
        panel.set_xticks(results.config.sizes, [str(n) for n in results.config.sizes], minor=False)
        panel.minorticks_off()
        panel.set_title(title)
        panel.set_xlabel("rows")
    axes[0].set_yscale("log")
    axes[1].set_ylim(-0.02, 1.02)
    axes[2].set_ylim(-0.005, 0.2)
    axes[2].axhline(LEVEL, color="#444444", linewidth=1, linestyle=":")
    axes[0].legend(loc="best")
    return figure if drawn else None


def draw_nhefs(results: Results) -> MatplotlibFigure | None:
    """Mean importances of the covariates of NHEFS by PermuCATE and LOCO."""
    chosen = results.records.filter(pl.col("metric") == "importance")
    means = chosen.group_by("arm", "case").agg(pl.col("value").mean())
    table = {(arm, case.split("/")[1]): value for arm, case, value in means.iter_rows()}
    arms = [arm for arm in STUDY.arms[:2] if any(name == arm.name for name, _ in table)]
    if not arms:
        return None
    names = sorted({case for _, case in table}, key=lambda case: table.get((arms[0].name, case), 0.0))
    figure, axes = new_figure(7.5, 4.2)
    for shift, (colour, arm) in enumerate(zip(COLOURS, arms, strict=False)):
        values = [table.get((arm.name, name), np.nan) for name in names]
        axes.plot(values, np.arange(len(names)) - 0.12 + 0.24 * shift, "o", color=colour, label=arm.title)
    axes.axvline(0, color="#444444", linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("importance for the effect of quitting on weight, kg²")
    axes.legend(loc="best")
    return figure


CLAIMS = (
    Claim(
        "null-variance",
        "At 200 rows the variance of covariates without importance is at most 0.65 of LOCO's",
        metric="null_variance",
        arm=PERMUCATE,
        baseline=LOCO,
        relation="ratio",
        direction="at most",
        threshold=0.65,
        cases="LD200/*",
        resample="case",
    ),
    Claim(
        "driver-variance",
        "At 200 rows the variance of the strongest driver is at most 0.8 of LOCO's",
        metric="driver_variance",
        arm=PERMUCATE,
        baseline=LOCO,
        relation="ratio",
        direction="at most",
        threshold=0.8,
        cases="LD200/*",
        resample="case",
    ),
    Claim(
        "type-one",
        "With a constant effect it rejects at most 7 % at the level of 5 %",
        metric="false_positives",
        arm=PERMUCATE,
        direction="at most",
        threshold=0.07,
        cases="constant/*",
        resample="case",
    ),
    Claim(
        "acic-ranking",
        "On ACIC covariates its ranking has an AUROC at least 0.04 above LOCO's",
        metric="auroc",
        arm=PERMUCATE,
        baseline=LOCO,
        direction="at least",
        threshold=0.04,
        cases="ACIC/*",
        resample="case",
        presets=("full",),
    ),
    Claim(
        "acic-power",
        "On ACIC covariates it finds at least 1.5 times as many modifiers as LOCO",
        metric="power",
        arm=PERMUCATE,
        baseline=LOCO,
        relation="ratio",
        direction="at least",
        threshold=1.5,
        cases="ACIC/*",
        resample="case",
        presets=("full",),
    ),
    Claim(
        "acic-false",
        "There it wrongly rejects at most 6 %",
        metric="false_positives",
        arm=PERMUCATE,
        direction="at most",
        threshold=0.06,
        cases="ACIC/*",
        resample="case",
        presets=("full",),
    ),
    Claim(
        "nhefs-stability",
        "On NHEFS its rankings under other seeds agree at least as well as LOCO's (Spearman)",
        metric="stability",
        arm=PERMUCATE,
        baseline=LOCO,
        direction="at least",
        threshold=0.0,
        # Pairs within a trial share seeds; trials do not.
        resample="seed",
        presets=("full",),
    ),
)

STUDY = Study(
    name="permucate",
    question=(
        "Does conditional permutation find the covariates that drive a treatment effect with less variance "
        "and more power than refitting without them, at the same budget?"
    ),
    arms=(
        Arm(PERMUCATE, "PermuCATE", "method", measure),
        Arm(LOCO, "LOCO", "baseline", measure),
        Arm(PERMUTATION, "Plain permutation", "ablation", measure),
    ),
    metrics=(
        Metric("null_variance", "Variance, nulls", better="lower"),
        Metric("driver_variance", "Variance, x2", better="lower"),
        Metric("squared_error", "Squared error", better="lower"),
        Metric("power", "Power", better="higher"),
        Metric("false_positives", "False positives", better="lower"),
        Metric("auroc", "AUROC of the ranking", better="higher"),
        Metric("stability", "Spearman over seeds", better="higher"),
        Metric("importance", "Importance", "kg²"),
    ),
    claims=CLAIMS,
    presets={
        "tiny": Preset(Config(sizes=(100, 200), repetitions=3, large=1, reseeds=2, permutations=10), seeds=1),
        "quick": Preset(Config(sizes=(100, 200, 400), repetitions=10, large=1, reseeds=2), seeds=1),
        "full": Preset(Config(sizes=(100, 200, 400, 800, 1600), repetitions=20, large=4, reseeds=4), seeds=5),
    },
    figures=(
        Figure("sizes", "Variance, power and false positives by rows (LD)", draw_sizes),
        Figure("nhefs", "Drivers of the effect of quitting smoking on weight", draw_nhefs),
    ),
    notes=(
        "All arms use the same samples, folds and doubly robust learner (ridge and logistic regression) and "
        "pseudo-outcomes; LOCO refits the final regression alone, as Hines et al. LD: six covariates, "
        "effect x1 + 2 x2 + x3, true importances (0.75, 3, 0.75, 0, 0, 0), noise of deviation 3. HL: 100 "
        "covariates with correlation 0.3, ten of them modifiers, 500 rows. ACIC: 800 rows of 55 real "
        "covariates of the 2016 challenge (causallib), with simulated treatment and outcome and eight "
        "modifiers; IHDP, which the paper uses, is in no package. NHEFS: 1566 smokers, real treatment and "
        "outcome, where the truth is not known and stability alone is judged. Means over all cases mix the "
        "simulations; the claims name theirs. Plain permutation ignores dependence between covariates; it "
        "estimates another quantity and is shown for its false importances."
    ),
)
