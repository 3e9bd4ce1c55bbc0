"""From importances of folds to standard errors, p-values and intervals.

The importances of cross-validation folds are correlated, because the folds train on mostly the same rows.
Nadeau and Bengio (2003, section 3) widen the variance of their mean to s^2 (1 / R + n_test / n_train). The
permutations of a fold are no replicates: they share its model and rows, and are averaged first.
"""

import sys
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
from jaxtyping import Float
from scipy import stats

from hexad.core.errors import InputError
from hexad.core.validation import check_choice, check_range

Adjustment = Literal["none", "holm", "bh"]


@dataclass(frozen=True)
class Estimates:
    """Means with standard errors (p,) and the degrees of freedom of their t; infinite for a normal."""

    mean: Float[np.ndarray, " p"]
    standard_error: Float[np.ndarray, " p"]
    dof: float

    @property
    def pvalues(self) -> Float[np.ndarray, " p"]:
        """One-sided: how likely so large a mean is where the importance is 0. A zero error gives 1 or 0."""
        safe = np.where(self.standard_error > 0, self.standard_error, 1.0)
        tail = (
            stats.t.sf(self.mean / safe, self.dof)
            if np.isfinite(self.dof)
            else stats.norm.sf(self.mean / safe)
        )
        return np.where(self.standard_error > 0, tail, np.where(self.mean > 0, 0.0, 1.0))

    def interval(self, confidence: float = 0.95) -> Float[np.ndarray, "p 2"]:
        """Two-sided confidence intervals."""
        check_range("confidence", confidence, 0, 1, low_open=True, high_open=True)
        tail = (1 + confidence) / 2
        half = stats.t.ppf(tail, self.dof) if np.isfinite(self.dof) else stats.norm.ppf(tail)
        return np.stack(
            [self.mean - half * self.standard_error, self.mean + half * self.standard_error], axis=1
        )


def nadeau_bengio(folds: Float[np.ndarray, "r p"], test_fraction: float) -> Estimates:
    """The corrected resampled t of R folds; with `test_fraction` 0 it is the ordinary t.

    Args:
        folds: importances by fold.
        test_fraction: n_test / n_train.

    Raises:
        InputError: fewer than two folds.
    """
    R = len(folds)
    if R < 2:
        raise InputError(f"a t-test needs the importances of at least 2 folds, not {R}; raise cv")
    check_range("test_fraction", test_fraction, 0)
    variance = folds.var(axis=0, ddof=1) * (1 / R + test_fraction)
    return Estimates(folds.mean(axis=0), np.sqrt(variance), R - 1)


def one_split(rows: Float[np.ndarray, "p n"]) -> Estimates:
    """A normal test on the rows of one test set: approximate, for the model that was fitted once.

    Raises:
        InputError: fewer than 20 rows.
    """
    n = rows.shape[1]
    if n < 20:
        raise InputError(f"the test set has {n} rows; at least 20 are needed")
    return Estimates(rows.mean(axis=1), rows.std(axis=1, ddof=1) / np.sqrt(n), np.inf)


def adjust(pvalues: Float[np.ndarray, " p"], how: str = "holm") -> Float[np.ndarray, " p"]:
    """p-values for many tests at once: Holm (family-wise error) or Benjamini-Hochberg (false discoveries)."""
    check_choice("adjustment", how, ("none", "holm", "bh"))
    if how == "none":
        return pvalues.copy()
    if how == "bh":
        return stats.false_discovery_control(pvalues)
    order = np.argsort(pvalues)
    factors = len(pvalues) - np.arange(len(pvalues))
    stepped = np.minimum(1.0, np.maximum.accumulate(pvalues[order] * factors))
    adjusted = np.empty_like(stepped)
    adjusted[order] = stepped
    return adjusted


@dataclass(frozen=True)
class Importances:
    """Importances of p covariates or groups, with their uncertainty.

    Attributes:
        method: `"permucate"`, `"loco"` or `"permutation"`.
        risk: the risk whose increase they are.
        names: covariates or groups.
        folds: (R, p), the importance in each fold; one row for a single test set.
        estimates: means, standard errors and degrees of freedom.
        kind: `"pandas"` where the covariates came so, and the summary goes back so.
    """

    method: str
    risk: str
    names: tuple[str, ...]
    folds: Float[np.ndarray, "r p"]
    estimates: Estimates
    kind: str = "numpy"

    @property
    def importances(self) -> Float[np.ndarray, " p"]:
        """Mean importance; estimates E[Var(tau(X) | X without j)] for `pseudo_outcome`."""
        return self.estimates.mean

    @property
    def standard_errors(self) -> Float[np.ndarray, " p"]:
        """Standard errors of the importances."""
        return self.estimates.standard_error

    @property
    def pvalues(self) -> Float[np.ndarray, " p"]:
        """One-sided p-values of no importance."""
        return self.estimates.pvalues

    def summary(self, confidence: float = 0.95, adjustment: Adjustment = "none") -> Any:
        """A table with the largest importance first: Polars, or pandas where the covariates were pandas'.

        Columns: variable, importance, standard_error, low, high, p_value and, adjusted, p_adjusted.
        """
        low, high = self.estimates.interval(confidence).T
        columns: dict[str, Any] = {
            "variable": list(self.names),
            "importance": self.importances,
            "standard_error": self.standard_errors,
            "low": low,
            "high": high,
            "p_value": self.pvalues,
        }
        if adjustment != "none":
            columns["p_adjusted"] = adjust(self.pvalues, adjustment)
        order = np.argsort(-self.importances, kind="stable")
        columns = {
            name: [values[place] for place in order] if isinstance(values, list) else values[order]
            for name, values in columns.items()
        }
        if self.kind == "pandas":
            return sys.modules["pandas"].DataFrame(columns)
        return pl.DataFrame(columns)
