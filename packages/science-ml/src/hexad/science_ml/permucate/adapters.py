"""Effect models of EconML, causalml and DoubleML, behind `fit(X, y, treatment)` and `effect(X)`.

Nothing of those packages is imported before a model of theirs is at hand. A fitted model passed to an adapter
is used as it is; `fit` fits a copy.
"""

import copy
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator

from hexad.core.errors import InputError, MissingExtraError
from hexad.science_ml.permucate.learners import regressor_of, seeded


@contextmanager
def _numpy_seeded(seed: int | None) -> Generator[None]:
    """Seed NumPy's global generator for the block, which models without a seed of their own draw from."""
    if seed is None:
        yield
        return
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed % 2**32)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002


class EconMLCate(BaseEstimator):
    """Any EconML estimator with one binary treatment: DML, DR and meta-learners, causal forests.

    Args:
        model: unfitted, or fitted. Covariates are its `X`; it gets no controls `W`.
        random_state: seed of the fit, where the model has none.
    """

    def __init__(self, model: Any, random_state: int | None = None) -> None:
        self.model = model
        self.random_state = random_state

    def fit(self, X: Any, y: Any, treatment: Any) -> Self:
        """Fit a copy of the model."""
        model = copy.deepcopy(_checked(self.model, "fit", "effect"))
        if self.random_state is not None and getattr(model, "random_state", self) is None:
            model.random_state = self.random_state
        with _numpy_seeded(self.random_state):
            self.model_ = model.fit(y, treatment, X=np.asarray(X))
        return self

    def effect(self, X: Any) -> Float[np.ndarray, " n"]:
        """`effect` of the model; of a linear one the same as `const_marginal_effect`."""
        model = getattr(self, "model_", self.model)
        return np.ravel(_checked(model, "effect").effect(np.asarray(X)))


class CausalMLCate(BaseEstimator):
    """A meta-learner of causalml, or one of its causal trees and forests, with one treatment and control 0.

    Args:
        model: unfitted, or fitted.
        random_state: seed of the fit, where the model has none.
    """

    def __init__(self, model: Any, random_state: int | None = None) -> None:
        self.model = model
        self.random_state = random_state

    def fit(self, X: Any, y: Any, treatment: Any) -> Self:
        """Fit a copy of the model."""
        self.model_ = copy.deepcopy(_checked(self.model, "fit", "predict"))
        if self.random_state is not None and getattr(self.model_, "random_state", self) is None:
            self.model_.random_state = self.random_state
        with _numpy_seeded(self.random_state):
            self.model_.fit(X=np.asarray(X), treatment=np.asarray(treatment), y=np.asarray(y))
        return self

    def effect(self, X: Any) -> Float[np.ndarray, " n"]:
        """`predict` of the model."""
        model = _checked(getattr(self, "model_", self.model), "predict")
        predicted = np.asarray(model.predict(np.asarray(X)))
        if predicted.size != len(predicted):
            raise InputError(f"the model predicts {predicted.shape[1:]} effects a row; give one treatment")
        return np.ravel(predicted).astype(float)


class DoubleMLCate(BaseEstimator):
    """DoubleML's interactive regression model (IRM), whose orthogonal score is the pseudo-outcome.

    DoubleML estimates averages; the effect of a row is a regression of the score on the covariates, as for
    its own GATEs and CATEs.

    Args:
        ml_g: learner of the outcome; default ridge.
        ml_m: learner of the propensity; default logistic regression.
        final: regressor of the score; default standardised ridge.
        n_folds: folds of DoubleML's cross-fitting.
        n_rep: its repetitions, over which scores are averaged.
        random_state: seed of its folds, and of every model that has none.
    """

    def __init__(
        self,
        ml_g: Any = None,
        ml_m: Any = None,
        final: Any = None,
        n_folds: int = 5,
        n_rep: int = 1,
        random_state: int | None = None,
    ) -> None:
        self.ml_g = ml_g
        self.ml_m = ml_m
        self.final = final
        self.n_folds = n_folds
        self.n_rep = n_rep
        self.random_state = random_state

    @classmethod
    def of(cls, irm: Any, final: Any = None) -> "DoubleMLCate":
        """The effect model of a fitted `DoubleMLIRM`.

        Raises:
            InputError: it is not fitted, or another model.
        """
        scores = getattr(irm, "psi_elements", None)
        wrong = type(irm).__name__ != "DoubleMLIRM" or not scores or "psi_b" not in scores
        # Before it is fitted, DoubleML holds scores that are NaN.
        if wrong or not np.isfinite(scores["psi_b"]).all():
            raise InputError(f"{type(irm).__name__} gives no scores; pass a fitted DoubleMLIRM")
        adapter = cls(final=final)
        return adapter._fit_final(irm._dml_data.x, scores["psi_b"])

    def fit(self, X: Any, y: Any, treatment: Any) -> Self:
        """Fit DoubleML's model, then the regression of its scores."""
        try:
            from doubleml import DoubleMLData, DoubleMLIRM
        except ImportError as error:
            raise MissingExtraError(
                'doubleml is not installed; run: pip install "hexad-science-ml[peers]"'
            ) from error
        from hexad.science_ml.permucate.learners import classifier_of

        data = DoubleMLData.from_arrays(np.asarray(X), np.asarray(y), np.asarray(treatment))
        ml_g = regressor_of("linear") if self.ml_g is None else self.ml_g
        ml_m = classifier_of("linear") if self.ml_m is None else self.ml_m
        with _numpy_seeded(self.random_state):  # its folds are drawn when it is made
            irm = DoubleMLIRM(
                data,
                ml_g=seeded(ml_g, self.random_state),
                ml_m=seeded(ml_m, self.random_state),
                n_folds=self.n_folds,
                n_rep=self.n_rep,
            ).fit()
        return self._fit_final(np.asarray(X), irm.psi_elements["psi_b"])

    def _fit_final(self, X: Any, scores: np.ndarray) -> Self:
        # psi_b has the shape (n, n_rep, treatments).
        phi = scores.reshape(len(scores), -1).mean(axis=1)
        self.final_ = seeded(regressor_of("linear") if self.final is None else self.final, None).fit(X, phi)
        return self

    def effect(self, X: Any) -> Float[np.ndarray, " n"]:
        """The regression of the scores at these rows."""
        return np.ravel(self.final_.predict(np.asarray(X)))


def _checked(model: Any, *methods: str) -> Any:
    lacking = [name for name in methods if not callable(getattr(model, name, None))]
    if isinstance(model, type):
        raise InputError(f"model is the class {model.__name__}; give an instance of it")
    if lacking:
        raise InputError(f"model is {model!r:.60}, which has no {' or '.join(lacking)}; give an effect model")
    return model


def adapt(model: Any) -> Any:
    """The model with `effect(X)`: itself where it has the conventions of this package, else in its adapter.

    Raises:
        InputError: it has neither `effect` nor `predict`, or is a DoubleML model of another kind.
    """
    home = type(model).__module__.split(".")[0]
    if home == "econml":
        return EconMLCate(model)
    if home == "causalml":
        return CausalMLCate(model)
    if home == "doubleml":
        return DoubleMLCate.of(model)
    if not callable(getattr(model, "effect", None)) and not callable(getattr(model, "predict", None)):
        raise InputError(f"{type(model).__name__} has neither effect(X) nor predict(X)")
    return model


def predicted_effect(model: Any, X: Any) -> Float[np.ndarray, " n"]:
    """The effect that an adapted model predicts, (n,).

    Raises:
        InputError: it predicts another number of rows, or values that are not finite.
    """
    give = model.effect if callable(getattr(model, "effect", None)) else model.predict
    tau = np.ravel(np.asarray(give(X), dtype=float))
    if len(tau) != len(X) or not np.isfinite(tau).all():
        raise InputError(
            f"{type(model).__name__} predicts {len(tau)} effects for {len(X)} rows, "
            f"{int((~np.isfinite(tau)).sum())} of them not finite; one finite number a row is needed"
        )
    return tau
