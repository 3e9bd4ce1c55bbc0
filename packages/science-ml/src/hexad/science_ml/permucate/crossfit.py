"""Cross-fitted importances: one plan of folds, one fit a fold, any of three ways to measure.

Every fold is the test set once. Pseudo-outcomes of training rows must come from nuisances that saw neither
those rows nor the test fold: for each pair of folds {k, l} one fit without both serves rows of l in the
training set of k and rows of k in that of l. K folds take K (K - 1) / 2 such fits and not K (K - 1), and K
more without k alone, for the risk on test rows. With fewer than four folds too few rows would be left, and
the learner cross-fits within each training set instead.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from joblib import Parallel, delayed
from sklearn.model_selection import StratifiedKFold

from hexad.core.errors import InputError
from hexad.core.validation import check_choice, check_count, check_range
from hexad.science_ml.permucate.adapters import predicted_effect
from hexad.science_ml.permucate.checks import warn_of_overlap
from hexad.science_ml.permucate.covariates import Covariates
from hexad.science_ml.permucate.importance import conditional_rows, layers_of, loco_rows, permutation_rows
from hexad.science_ml.permucate.inference import Importances, nadeau_bengio
from hexad.science_ml.permucate.learners import DRLearner, NuisanceModels, seeded
from hexad.science_ml.permucate.risks import CLIP, RISKS, Nuisances, RiskName, make_risk, pseudo_outcome
from hexad.science_ml.permucate.sampling import Noise, fit_samplers

Measure = Literal["permucate", "loco", "permutation"]
MEASURES: tuple[Measure, ...] = ("permucate", "loco", "permutation")
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Plan:
    """How importances are measured; see `PermuCATE` for the arguments."""

    risk: RiskName = "pseudo_outcome"
    n_permutations: int = 50
    cv: int = 5
    n_repeats: int = 1
    clip: float = CLIP
    cross_fit: Literal["shared", "nested"] = "shared"
    measures: tuple[Measure, ...] = ("permucate",)
    imputer: Any = field(default="auto", compare=False)
    random_state: int | None = None
    n_jobs: int | None = None

    def __post_init__(self) -> None:
        check_choice("risk", self.risk, RISKS)
        check_choice("cross_fit", self.cross_fit, ("shared", "nested"))
        for measure in self.measures:
            check_choice("measure", measure, MEASURES)
        check_range("clip", self.clip, 0, 0.5, low_open=True, high_open=True)
        for name in ("n_permutations", "n_repeats"):
            check_count(name, getattr(self, name))
        if self.n_jobs == 0:
            raise InputError("n_jobs is 0; give a number of processes, or -1 for one a core")
        if self.random_state is not None:
            check_count("random_state", self.random_state, 0)


@dataclass(frozen=True)
class Rows:
    """The data: covariates, outcome (n,), treatment of 0 and 1 (n,), and what is measured."""

    covariates: Covariates
    y: Float[np.ndarray, " n"]
    treatment: Int[np.ndarray, " n"]
    names: tuple[str, ...]
    blocks: list[Int[np.ndarray, " k"]]
    categorical: Bool[np.ndarray, " p"]
    constant: Bool[np.ndarray, " p"]


@dataclass(frozen=True)
class Fold:
    """One test fold: what its importances need beside the data."""

    test: Int[np.ndarray, " n_test"]
    train: Int[np.ndarray, " n_train"]
    seed: tuple[int, ...]
    phi: Float[np.ndarray, " n_train"] | None = None
    nuisances: Nuisances | None = None


def cross_fitted_importances(
    estimator: Any,
    rows: Rows,
    plan: Plan,
    nuisance_models: NuisanceModels | None = None,
    progress: Progress | None = None,
) -> dict[str, Importances]:
    """Importances by each of the plan's measures, from the same folds and the same fitted models.

    Args:
        estimator: unfitted, adapted model of the effect.
        rows: the data, checked.
        plan: how to measure.
        nuisance_models: for the risk, where the estimator has no `nuisances(X)` of its own.
        progress: called with the tasks done and all tasks.
    """
    entropy = int(np.random.SeedSequence(plan.random_state).generate_state(1)[0])
    estimator = seeded(estimator, entropy)
    shared = isinstance(estimator, DRLearner) and plan.cross_fit == "shared" and plan.cv >= 4
    own = callable(getattr(estimator, "nuisances", None)) and not shared
    if isinstance(estimator, DRLearner):
        nuisance_models = estimator.nuisance_models()
    models = seeded(nuisance_models or NuisanceModels(), entropy)
    splits = [_split(rows.treatment, plan.cv, entropy + repeat) for repeat in range(plan.n_repeats)]
    left_out: list[tuple[int, ...]] = [] if own else [(k,) for k in range(plan.cv)]
    if shared:
        left_out += list(combinations(range(plan.cv), 2))
    fits = [(repeat, folds) for repeat in range(plan.n_repeats) for folds in left_out]
    total = len(fits) + plan.n_repeats * plan.cv
    tell = progress or (lambda done, total: None)
    found = _run(
        [functools.partial(_fit_nuisances, models, rows, splits[r], folds) for r, folds in fits],
        plan.n_jobs,
        lambda done: tell(done, total),
    )
    nuisances = dict(zip(fits, found, strict=True))
    folds = []
    for repeat, split in enumerate(splits):
        for k in range(plan.cv):
            train, test = np.flatnonzero(split != k), np.flatnonzero(split == k)
            phi = _phi(rows, split, nuisances, repeat, k, estimator.clip)[train] if shared else None
            at_test = None if own else nuisances[repeat, (k,)]
            folds.append(Fold(test, train, (entropy, repeat, k), phi, at_test))
    measured = _run(
        [functools.partial(_measure, estimator, rows, plan, fold) for fold in folds],
        plan.n_jobs,
        lambda done: tell(len(fits) + done, total),
    )
    warn_of_overlap(np.concatenate([propensity for _, propensity in measured]), plan.clip)
    test_fraction = 1 / (plan.cv - 1)
    results = {}
    for name in plan.measures:
        by_fold = np.stack([values[name] for values, _ in measured])
        estimates = nadeau_bengio(by_fold, test_fraction)
        results[name] = Importances(name, plan.risk, rows.names, by_fold, estimates, rows.covariates.kind)
    return results


def _split(treatment: Int[np.ndarray, " n"], cv: int, seed: int) -> Int[np.ndarray, " n"]:
    """The fold of each row, with both arms spread evenly."""
    split = np.empty(len(treatment), dtype=int)
    folds = StratifiedKFold(cv, shuffle=True, random_state=seed % 2**32)
    for number, (_, test) in enumerate(folds.split(np.zeros(len(treatment)), treatment)):
        split[test] = number
    return split


def _fit_nuisances(
    models: NuisanceModels, rows: Rows, split: Int[np.ndarray, " n"], left_out: tuple[int, ...]
) -> Nuisances:
    """Nuisances of the rows of these folds, in ascending order, by models that saw none of them."""
    held = np.isin(split, left_out)
    table, values = rows.covariates.table, rows.covariates.values
    fitted = seeded(models, None).fit(table(values[~held]), rows.y[~held], rows.treatment[~held])
    return fitted.predict(table(values[held]))


def _phi(
    rows: Rows,
    split: Int[np.ndarray, " n"],
    nuisances: dict[tuple[int, tuple[int, ...]], Nuisances],
    repeat: int,
    k: int,
    clip: float,
) -> Float[np.ndarray, " n"]:
    """Pseudo-outcomes of the training rows of fold k; NaN in its test rows."""
    phi = np.full(len(split), np.nan)
    for fold in range(int(split.max()) + 1):
        if fold == k:
            continue
        pair = (min(k, fold), max(k, fold))
        held = np.flatnonzero(np.isin(split, pair))
        values = pseudo_outcome(rows.y[held], rows.treatment[held], nuisances[repeat, pair], clip)
        mine = split[held] == fold
        phi[held[mine]] = values[mine]
    return phi


def _measure(
    estimator: Any, rows: Rows, plan: Plan, fold: Fold
) -> tuple[dict[str, Float[np.ndarray, " blocks"]], Float[np.ndarray, " n_test"]]:
    """Mean importances on the fold's test rows by each measure, and their propensities."""
    covariates = rows.covariates
    train, test = covariates.values[fold.train], covariates.values[fold.test]
    y, a = rows.y[fold.train], rows.treatment[fold.train]
    model = seeded(estimator, None)
    if fold.phi is not None:
        model.fit_final(covariates.table(train), fold.phi)
    else:
        model.fit(covariates.table(train), y, a)
    nuisances = fold.nuisances or model.nuisances(covariates.table(test))
    risk = make_risk(plan.risk, rows.y[fold.test], rows.treatment[fold.test], nuisances, plan.clip)
    # Constants have importance 0 by definition; rounding would leave 1e-33.
    live = [place for place, block in enumerate(rows.blocks) if not rows.constant[block].all()]
    blocks = [rows.blocks[place] for place in live]
    found: dict[str, np.ndarray] = {name: np.zeros(len(rows.blocks)) for name in plan.measures}
    if not blocks:
        return found, nuisances.propensity
    noise = Noise.draw(len(test), plan.n_permutations, layers_of(blocks, rows.categorical), fold.seed)

    def effect(values: Float[np.ndarray, "m p"]) -> Float[np.ndarray, " m"]:
        return predicted_effect(model, covariates.table(values))

    for name in plan.measures:
        if name == "permucate":
            listed = isinstance(plan.imputer, (list, tuple))
            imputer = [plan.imputer[place] for place in live] if listed else plan.imputer
            samplers = fit_samplers(covariates, train, blocks, rows.categorical, imputer)
            by_row = conditional_rows(effect, test, risk, samplers, noise)
        elif name == "permutation":
            by_row = permutation_rows(effect, test, risk, blocks, noise)
        else:
            by_row = loco_rows(model, covariates, train, y, a, test, risk, blocks)
        found[name][live] = by_row.mean(axis=1)
    return found, nuisances.propensity


def _run(tasks: Sequence[Callable[[], Any]], n_jobs: int | None, done: Callable[[int], None]) -> list[Any]:
    """The results of the tasks in their order."""
    if not tasks:
        return []
    results = []
    parallel = Parallel(n_jobs=n_jobs, return_as="generator")
    for number, result in enumerate(parallel(delayed(task)() for task in tasks), start=1):
        results.append(result)
        done(number)
    return results
