"""`PermuCATE` and its two baselines, in scikit-learn's conventions."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from hexad.core.errors import InputError
from hexad.core.validation import check_count, check_flag, check_range
from hexad.science_ml.permucate.adapters import adapt
from hexad.science_ml.permucate.checks import (
    check_arms,
    check_rows,
    seed_of,
    warn_of_constant_outcome,
    warn_of_constants,
)
from hexad.science_ml.permucate.covariates import read_covariates
from hexad.science_ml.permucate.crossfit import Measure, Plan, Progress, Rows, cross_fitted_importances
from hexad.science_ml.permucate.inference import Adjustment, Importances
from hexad.science_ml.permucate.learners import DRLearner, NuisanceModels
from hexad.science_ml.permucate.risks import RiskName

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class PermuCATE(BaseEstimator):
    """Which covariates drive the heterogeneity of a treatment effect, with p-values and intervals.

    Importance estimates Psi_j = E[Var(tau(X) | X without j)]: the variance of the effect tau that covariate j
    explains beyond all others, in squared units of the outcome. Paillard et al., ICML 2025.

    Args:
        estimator: model of the effect: `DRLearner` (default), `TLearner`, an unfitted model of EconML or
            causalml, or anything with `fit(X, y, treatment)` and `effect(X)`.
        imputer: model of a covariate given the others: `"auto"` for ridge and logistic regression in closed
            form or by scikit-learn; a regressor or classifier, which replaces the one of its kind; or a list
            with one a covariate or group.
        risk: `"pseudo_outcome"` (DR-loss), or `"r_risk"` (R-loss), which weights rows by e (1 - e), so that
            its importances are on another scale: a quarter at e = 1/2.
        n_permutations: draws of each covariate.
        cv: folds, stratified by treatment; at least 2.
        n_repeats: repetitions of the cross-validation with other folds; 5 give steadier p-values.
        groups: names of groups and the covariates of each, measured together.
        categorical: covariates that are drawn from classes: `"auto"` for text and for numbers with at most
            `max_cardinality` values, or a list of names.
        max_cardinality: see `categorical`.
        nuisances: `NuisanceModels` for the risk, where `estimator` has none of its own.
        cross_fit: `"shared"` makes the pseudo-outcomes of a `DRLearner` with the folds of `cv`, so that each
            fit serves two of them; `"nested"` cross-fits within each training set, at twice the time.
        encode: hand text to models as 0/1 columns; False hands it as it is, for pipelines that encode.
        clip: propensities are cut to [clip, 1 - clip].
        n_jobs: processes, as joblib counts them.
        random_state: of folds, permutations, and of every model that has none.

    Attributes:
        importances_, standard_errors_, pvalues_: (p,), one a covariate or group. p-values are one-sided, by
            the corrected resampled t-test of Nadeau and Bengio over folds.
        intervals_: (p, 2), two-sided at 95 %.
        importances_folds_: (p, R), by fold.
        names_: of covariates and groups; feature_names_in_, n_features_in_: of the covariates.
        result_: all of it as `Importances`.
    """

    def __init__(
        self,
        estimator: Any = None,
        imputer: Any = "auto",
        risk: RiskName = "pseudo_outcome",
        n_permutations: int = 50,
        cv: int = 5,
        n_repeats: int = 1,
        groups: Mapping[str, Sequence[str]] | None = None,
        categorical: "str | Sequence[str]" = "auto",
        max_cardinality: int = 10,
        nuisances: NuisanceModels | None = None,
        cross_fit: Literal["shared", "nested"] = "shared",
        encode: bool = True,
        clip: float = 0.01,
        n_jobs: int | None = None,
        random_state: "int | np.random.RandomState | np.random.Generator | None" = None,
    ) -> None:
        self.estimator = estimator
        self.imputer = imputer
        self.risk = risk
        self.n_permutations = n_permutations
        self.cv = cv
        self.n_repeats = n_repeats
        self.groups = groups
        self.categorical = categorical
        self.max_cardinality = max_cardinality
        self.nuisances = nuisances
        self.cross_fit = cross_fit
        self.encode = encode
        self.clip = clip
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: Any, y: Any, treatment: Any) -> Self:
        """Measure the importances.

        Args:
            X: covariates (n, p): a NumPy array, or a pandas or Polars frame, whose names are kept.
            y: outcomes, (n,).
            treatment: 0 for control, 1 for treated, (n,).

        Raises:
            InputError: gaps, a treatment that is not binary, arms or folds that are too small, unknown or
                overlapping groups, an estimator that predicts no effect.
        """
        self.result_ = self.measure(X, y, treatment)["permucate"]
        self.names_ = self.result_.names
        self.importances_ = self.result_.importances
        self.importances_folds_ = self.result_.folds.T
        self.standard_errors_ = self.result_.standard_errors
        self.pvalues_ = self.result_.pvalues
        self.intervals_ = self.result_.estimates.interval()
        return self

    def measure(
        self,
        X: Any,
        y: Any,
        treatment: Any,
        measures: Sequence[Measure] = ("permucate",),
        progress: Progress | None = None,
    ) -> dict[str, Importances]:
        """Importances by several measures from the same folds and fitted models; arguments as `fit`.

        Args:
            measures: of `"permucate"`, `"loco"` and `"permutation"`.
            progress: called with the tasks done and all tasks.
        """
        plan = Plan(
            risk=self.risk,
            n_permutations=self.n_permutations,
            cv=self.cv,
            n_repeats=self.n_repeats,
            clip=self.clip,
            cross_fit=self.cross_fit,
            measures=tuple(measures),
            imputer=self.imputer,
            random_state=seed_of(self.random_state),
            n_jobs=self.n_jobs,
        )
        check_flag("encode", self.encode)
        check_count("max_cardinality", self.max_cardinality, 0)
        estimator = adapt(DRLearner(clip=self.clip) if self.estimator is None else self.estimator)
        if not callable(getattr(estimator, "fit", None)) or not callable(getattr(estimator, "effect", None)):
            raise InputError(
                f"{type(estimator).__name__} has no fit(X, y, treatment) and effect(X); give a learner "
                "of the effect, or use conditional_permutation_importance with a fitted model"
            )
        if isinstance(estimator, DRLearner):
            check_range("clip of the DRLearner", estimator.clip, 0, 0.5, low_open=True, high_open=True)
        covariates = read_covariates(X, self.encode)
        y, treatment = check_rows(len(covariates), y, treatment)
        check_arms(treatment, self.cv)
        names, blocks = covariates.blocks(self.groups)
        if isinstance(self.imputer, (list, tuple)) and len(self.imputer) != len(blocks):
            raise InputError(
                f"imputer lists {len(self.imputer)} models for {len(blocks)} covariates or groups"
            )
        categorical = covariates.categorical(self.categorical, self.max_cardinality)
        warn_of_constant_outcome(y)
        constant = warn_of_constants(covariates)
        self.feature_names_in_ = np.array(covariates.names, dtype=object)
        self.n_features_in_ = len(covariates.names)
        rows = Rows(covariates, y, treatment, names, blocks, categorical, constant)
        return cross_fitted_importances(estimator, rows, plan, self.nuisances, progress)

    def summary(self, confidence: float = 0.95, adjustment: Adjustment = "none") -> Any:
        """A table with the largest importance first; see `Importances.summary`."""
        check_is_fitted(self, "result_")
        return self.result_.summary(confidence, adjustment)

    def plot(self, limit: int = 30, confidence: float = 0.95) -> "Figure":
        """The largest importances with their intervals, as a Matplotlib figure."""
        from hexad.science_ml.permucate.figures import draw_importances

        check_is_fitted(self, "result_")
        return draw_importances(self.result_, limit, confidence)


def loco_cate(X: Any, y: Any, treatment: Any, settings: PermuCATE | None = None) -> Importances:
    """Leave-one-covariate-out importances (refitting) with the settings of a `PermuCATE`."""
    return (settings or PermuCATE()).measure(X, y, treatment, ("loco",))["loco"]


def permutation_cate(X: Any, y: Any, treatment: Any, settings: PermuCATE | None = None) -> Importances:
    """Plain permutation importances with the settings of a `PermuCATE`.

    Not valid where covariates depend on each other: rows are made that no population has.
    """
    return (settings or PermuCATE()).measure(X, y, treatment, ("permutation",))["permutation"]
