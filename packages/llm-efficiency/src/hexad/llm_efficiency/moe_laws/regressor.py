"""The joint law as a scikit-learn regressor, for pipelines, searches and cross-validation."""

from typing import Any, Literal, Self

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from hexad.core.errors import InputError, MissingExtraError
from hexad.core.validation import check_count
from hexad.llm_efficiency.moe_laws.fitting import FitResult, fit
from hexad.llm_efficiency.moe_laws.law import JointMoELaw

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.utils import Tags
    from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data
except ImportError:
    raise MissingExtraError(
        'JointMoERegressor needs scikit-learn 1.6 or later; run: pip install "hexad-llm-efficiency[sklearn]"'
    ) from None

FEATURES = ("n_active", "tokens", "experts")


def _by_name(X: Any) -> Any:
    """The columns of a data frame in the order of `FEATURES`, whatever theirs; what has no names as it is."""
    names = list(getattr(X, "columns", []))
    if not names or not all(isinstance(name, str) for name in names):
        return X
    if sorted(names) != sorted(FEATURES):
        raise InputError(f"X has the columns {', '.join(names)}; they must be {', '.join(FEATURES)}")
    return X[list(FEATURES)]


class JointMoERegressor(RegressorMixin, BaseEstimator):
    """`fit` of the joint law behind scikit-learn's face; X has the columns n_active, tokens and experts.

    Columns of a data frame are taken by name, those of an array in this order.

    Args:
        n_starts: starts of the fit.
        weighting: `"inverse-loss"` gives runs of higher loss less weight.
        huber_delta: residuals of ln L beyond it count linearly.
        random_state: seed of the starts.

    Attributes:
        law_: the fitted `JointMoELaw`.
        result_: the whole `FitResult`.
        n_features_in_: 3.

    Raises:
        InputError: see `hexad.llm_efficiency.moe_laws.fit`; nothing is held out here, which is
            scikit-learn's own task (`cross_val_score`).
    """

    law_: JointMoELaw
    result_: FitResult
    n_features_in_: int

    def __init__(
        self,
        n_starts: int = 16,
        weighting: Literal["none", "inverse-loss"] = "none",
        huber_delta: float = 0.01,
        random_state: int = 0,
    ) -> None:
        self.n_starts = n_starts
        self.weighting: Literal["none", "inverse-loss"] = weighting
        self.huber_delta = huber_delta
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.target_tags.positive_only = True
        tags.regressor_tags.poor_score = True  # random targets follow no power law
        return tags

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to runs.

        Args:
            X: shape (runs, 3): active parameters, tokens, experts.
            y: shape (runs,): nats per token.
        """
        check_count("random_state", self.random_state, 0)
        table, losses = validate_data(
            self, _by_name(X), y, y_numeric=True, dtype=np.float64, ensure_min_samples=2
        )
        check_non_negative(table, type(self).__name__)
        self._check_features(table)
        runs = dict(zip(FEATURES, table.T, strict=True)) | {"loss": losses}
        self.result_ = fit(
            runs,
            n_starts=self.n_starts,
            holdout=None,
            weighting=self.weighting,
            huber_delta=self.huber_delta,
            seed=self.random_state,
        )
        assert isinstance(self.result_.law, JointMoELaw)
        self.law_ = self.result_.law
        return self

    def predict(self, X: ArrayLike) -> Float[np.ndarray, " runs"]:
        """Nats per token of rows (active parameters, tokens, experts)."""
        check_is_fitted(self)
        table = validate_data(self, _by_name(X), dtype=np.float64, reset=False)
        return self.law_.loss(*table.T)

    @staticmethod
    def _check_features(table: np.ndarray) -> None:
        if table.shape[1] != len(FEATURES):
            raise InputError(f"X has {table.shape[1]} feature(s); it must have 3: {', '.join(FEATURES)}")
