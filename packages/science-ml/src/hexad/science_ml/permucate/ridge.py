"""Ridge regression in closed form: of an outcome on all columns, and of every column on the others.

Columns are standardised first, so that no result depends on their units, and the penalty is the one of
`ALPHAS` with the smallest leave-one-out error, which a linear smoother gives without refitting:
e_i / (1 - h_i) with its leverage h_i (Golub, Heath and Wahba 1979).

One inverse serves all columns. With G = Z'Z and P = (G + alpha I)^-1, the ridge regression of the block Z_B
on the other columns Z_R has the coefficients -P_RB P_BB^-1 (inverse of a partitioned matrix), hence the
residuals U_B P_BB^-1 with U = Z P, and the leverages z_i' P z_i - u_iB' P_BB^-1 u_iB.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

ALPHAS: tuple[float, ...] = tuple(np.logspace(-3, 3, 10))
"""Penalties that are tried; those of the authors' imputers."""


@dataclass(frozen=True)
class Scale:
    """Means and deviations that standardise columns; a constant column is centred alone."""

    mean: Float[np.ndarray, " d"]
    deviation: Float[np.ndarray, " d"]

    @classmethod
    def of(cls, columns: Float[np.ndarray, "n d"]) -> "Scale":
        """The scale of these rows."""
        mean, deviation = columns.mean(axis=0), columns.std(axis=0)
        # The deviation of a constant column is rounding error and not always 0.
        constant = deviation <= 1e-12 * np.maximum(1.0, np.abs(mean))
        return cls(mean, np.where(constant, 1.0, deviation))

    def apply(self, columns: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """The rows, standardised."""
        return (columns - self.mean) / self.deviation


class StandardizedRidge(RegressorMixin, BaseEstimator):
    """Ridge regression on standardised columns with the penalty of the smallest leave-one-out error.

    The same model as `StandardScaler` before `RidgeCV`, but its coefficients are those of the raw columns, so
    that predicting is one product of a matrix and a vector: permutation importances predict n * B * p rows.

    Args:
        alphas: the penalties to choose from.
    """

    def __init__(self, alphas: Sequence[float] = ALPHAS) -> None:
        self.alphas = alphas

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to rows `X` (n, d) and an outcome `y` (n,)."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        scale = Scale.of(X)
        Z, centred = scale.apply(X), y - y.mean()
        left, singular, right = np.linalg.svd(Z, full_matrices=False)
        projected = left.T @ centred
        best, chosen = np.inf, np.zeros(Z.shape[1])
        for alpha in self.alphas:
            shrink = singular**2 / (singular**2 + alpha)
            leverage = (left**2) @ shrink + 1 / len(y)
            error = float((((centred - left @ (shrink * projected)) / (1 - leverage)) ** 2).mean())
            if error < best:
                best, self.alpha_ = error, float(alpha)
                chosen = right.T @ (singular / (singular**2 + alpha) * projected)
        self.coef_ = chosen / scale.deviation
        self.intercept_ = float(y.mean() - scale.mean @ self.coef_)
        return self

    def predict(self, X: Any) -> Float[np.ndarray, " n"]:
        """The predicted outcome of each row."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False, ensure_all_finite=False)
        return X @ self.coef_ + self.intercept_


@dataclass(frozen=True)
class BlockRidge:
    """The ridge regression of one block of columns on all others.

    Attributes:
        alpha: its penalty.
        weights: (d, k); the residuals of standardised rows Z are `Z @ weights`, in standard deviations.
        coefficients: the part of `-weights` that predicts; zero in the block's own rows.
    """

    scale: Scale
    columns: Int[np.ndarray, " k"]
    alpha: float
    weights: Float[np.ndarray, "d k"]

    @property
    def coefficients(self) -> Float[np.ndarray, "d k"]:
        """Slopes on the other columns, all standardised; zero in the block's own rows."""
        slopes = -self.weights
        slopes[self.columns] = 0.0
        return slopes

    def residuals(self, design: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n k"]:
        """Block minus its prediction from the other columns, in the columns' own units."""
        return (self.scale.apply(design) @ self.weights) * self.scale.deviation[self.columns]


def regress_blocks(
    design: Float[np.ndarray, "n d"],
    blocks: Sequence[Int[np.ndarray, " k"]],
    alphas: Sequence[float] = ALPHAS,
) -> list[BlockRidge]:
    """The ridge regression of each block of columns on all other columns, each with its own penalty.

    Costs one inverse of (d, d) and one product (n, d) x (d, d) a penalty, however many the blocks.
    """
    n = len(design)
    scale = Scale.of(design)
    Z = scale.apply(design)
    values, vectors = np.linalg.eigh(Z.T @ Z)
    values = np.maximum(values, 0.0)
    best = np.full(len(blocks), np.inf)
    found: list[BlockRidge | None] = [None] * len(blocks)
    for alpha in alphas:
        P = (vectors / (values + alpha)) @ vectors.T
        U = Z @ P
        total = np.einsum("nd,nd->n", Z, U)
        for place, block in enumerate(blocks):
            inverse = np.linalg.inv(P[np.ix_(block, block)])
            residuals = U[:, block] @ inverse
            leverage = total - np.einsum("nk,nk->n", residuals, U[:, block]) + 1 / n
            error = float(((residuals / (1 - leverage)[:, None]) ** 2).mean())
            if error < best[place]:
                best[place] = error
                found[place] = BlockRidge(scale, block, float(alpha), P[:, block] @ inverse)
    return [one for one in found if one is not None]
