"""Learners of the treatment effect tau(X) = E[Y(1) - Y(0) | X], in scikit-learn's conventions.

`NuisanceModels` fits mu_0, mu_1 and the propensity; `DRLearner` regresses cross-fitted pseudo-outcomes on the
covariates (Kennedy 2023); `TLearner` subtracts two outcome models. Any scikit-learn regressor, classifier or
pipeline serves.
"""

from typing import Any, Literal, Self

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator, clone
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import check_is_fitted

from hexad.core.errors import InputError
from hexad.core.validation import check_choice, check_count, check_range
from hexad.science_ml.permucate.ridge import StandardizedRidge
from hexad.science_ml.permucate.risks import CLIP, Nuisances, pseudo_outcome

Family = Literal["linear", "forest", "boosting"]


def regressor_of(family: str) -> Any:
    """A regressor of one of three families: ridge, a random forest, or boosted trees."""
    check_choice("family of models", family, ("linear", "forest", "boosting"))
    if family == "forest":
        # Half samples and a third of the columns a split, as in generalised random forests.
        return RandomForestRegressor(100, min_samples_leaf=10, max_features=1 / 3, max_samples=0.5)
    if family == "boosting":
        return HistGradientBoostingRegressor(learning_rate=0.05, max_leaf_nodes=15)
    return StandardizedRidge()


def classifier_of(family: str) -> Any:
    """A classifier of one of three families: logistic regression, a random forest, or boosted trees."""
    check_choice("family of models", family, ("linear", "forest", "boosting"))
    if family == "forest":
        return RandomForestClassifier(100, min_samples_leaf=10, max_samples=0.5)
    if family == "boosting":
        return HistGradientBoostingClassifier(learning_rate=0.05, max_leaf_nodes=15)
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))


def seeded(estimator: Any, seed: int | None) -> Any:
    """A clone whose parameters called `random_state`, nested ones too, are `seed` where they were None."""
    copy = clone(estimator)
    if seed is not None:
        free = [
            name
            for name, value in copy.get_params().items()
            if value is None and (name == "random_state" or name.endswith("__random_state"))
        ]
        copy.set_params(**dict.fromkeys(free, seed))
    return copy


class NuisanceModels(BaseEstimator):
    """The expected outcome of each arm and the propensity.

    Args:
        regressor: model of the outcome within an arm; default standardised ridge.
        classifier: model of the treatment, with `predict_proba`; default logistic regression. For a trial
            with a known probability: `DummyClassifier(strategy="prior")`.
        random_state: seeds every model that has none.
    """

    def __init__(
        self, regressor: Any = None, classifier: Any = None, random_state: int | None = None
    ) -> None:
        self.regressor = regressor
        self.classifier = classifier
        self.random_state = random_state

    def fit(self, X: Any, y: Any, treatment: Any) -> Self:
        """Fit to rows `X` (n, d), outcomes `y` (n,) and treatments (n,) of 0 and 1."""
        regressor = regressor_of("linear") if self.regressor is None else self.regressor
        classifier = classifier_of("linear") if self.classifier is None else self.classifier
        if not hasattr(classifier, "predict_proba"):
            raise InputError(f"classifier {type(classifier).__name__} has no predict_proba")
        y, treatment = np.asarray(y, dtype=float), np.asarray(treatment)
        arms = [np.flatnonzero(treatment == arm) for arm in (0, 1)]
        for arm, rows in enumerate(arms):
            if not len(rows):
                raise InputError(f"treatment arm {arm} has no row to fit a model to")
        self.mu0_, self.mu1_ = (
            seeded(regressor, self.random_state).fit(_safe_indexing(X, rows), y[rows]) for rows in arms
        )
        self.propensity_ = seeded(classifier, self.random_state).fit(X, treatment.astype(int))
        return self

    def predict(self, X: Any) -> Nuisances:
        """mu_0, mu_1 and the propensity at rows `X`."""
        check_is_fitted(self)
        # The classifier may hold its classes in any order.
        treated = int(np.flatnonzero(np.asarray(self.propensity_.classes_) == 1)[0])
        return Nuisances(
            np.ravel(self.mu0_.predict(X)).astype(float),
            np.ravel(self.mu1_.predict(X)).astype(float),
            np.asarray(self.propensity_.predict_proba(X)[:, treated], dtype=float),
        )


class DRLearner(BaseEstimator):
    """Doubly robust learner: a regression of cross-fitted pseudo-outcomes on the covariates.

    Args:
        regressor: see `NuisanceModels`.
        classifier: see `NuisanceModels`.
        final: regressor of the pseudo-outcomes; default standardised ridge, which finds linear modification
            alone. Boosted trees find the rest.
        n_folds: folds of the cross-fitting, stratified by treatment.
        clip: propensities are cut to [clip, 1 - clip].
        random_state: of the folds, and of every model that has none.
    """

    def __init__(
        self,
        regressor: Any = None,
        classifier: Any = None,
        final: Any = None,
        n_folds: int = 5,
        clip: float = CLIP,
        random_state: int | None = None,
    ) -> None:
        self.regressor = regressor
        self.classifier = classifier
        self.final = final
        self.n_folds = n_folds
        self.clip = clip
        self.random_state = random_state

    def nuisance_models(self) -> NuisanceModels:
        """The unfitted nuisance models."""
        return NuisanceModels(self.regressor, self.classifier, self.random_state)

    def fit(self, X: Any, y: Any, treatment: Any) -> Self:
        """Cross-fit the pseudo-outcomes, fit the effect to them, and the nuisances to all rows."""
        y, treatment = np.asarray(y, dtype=float), np.asarray(treatment)
        check_count("n_folds", self.n_folds, 2)
        check_range("clip", self.clip, 0, 0.5, low_open=True, high_open=True)
        phi = np.empty(len(y))
        folds = StratifiedKFold(self.n_folds, shuffle=True, random_state=self.random_state)
        for fit, held in folds.split(np.zeros(len(y)), treatment):
            models = self.nuisance_models().fit(_safe_indexing(X, fit), y[fit], treatment[fit])
            nuisances = models.predict(_safe_indexing(X, held))
            phi[held] = pseudo_outcome(y[held], treatment[held], nuisances, self.clip)
        self.nuisances_ = self.nuisance_models().fit(X, y, treatment)
        return self.fit_final(X, phi)

    def fit_final(self, X: Any, phi: Float[np.ndarray, " n"]) -> Self:
        """Fit the effect alone, to pseudo-outcomes that are given."""
        final = regressor_of("linear") if self.final is None else self.final
        self.pseudo_outcomes_ = np.asarray(phi, dtype=float)
        self.final_ = seeded(final, self.random_state).fit(X, self.pseudo_outcomes_)
        return self

    def effect(self, X: Any) -> Float[np.ndarray, " n"]:
        """Predicted treatment effect of each row."""
        check_is_fitted(self, "final_")
        return np.ravel(self.final_.predict(X))

    def nuisances(self, X: Any) -> Nuisances:
        """mu_0, mu_1 and the propensity at rows `X`, by models of all training rows."""
        check_is_fitted(self, "nuisances_")
        return self.nuisances_.predict(X)


class TLearner(BaseEstimator):
    """The difference of two outcome models, mu_1 - mu_0.

    Args:
        regressor: see `NuisanceModels`.
        classifier: see `NuisanceModels`.
        random_state: see `NuisanceModels`.
    """

    def __init__(
        self, regressor: Any = None, classifier: Any = None, random_state: int | None = None
    ) -> None:
        self.regressor = regressor
        self.classifier = classifier
        self.random_state = random_state

    def nuisance_models(self) -> NuisanceModels:
        """The unfitted nuisance models."""
        return NuisanceModels(self.regressor, self.classifier, self.random_state)

    def fit(self, X: Any, y: Any, treatment: Any) -> Self:
        """Fit both outcome models and the propensity."""
        self.nuisances_ = self.nuisance_models().fit(X, y, treatment)
        return self

    def effect(self, X: Any) -> Float[np.ndarray, " n"]:
        """Predicted treatment effect of each row."""
        check_is_fitted(self)
        return np.ravel(self.nuisances_.mu1_.predict(X)) - np.ravel(self.nuisances_.mu0_.predict(X))

    def nuisances(self, X: Any) -> Nuisances:
        """mu_0, mu_1 and the propensity at rows `X`."""
        check_is_fitted(self)
        return self.nuisances_.predict(X)
