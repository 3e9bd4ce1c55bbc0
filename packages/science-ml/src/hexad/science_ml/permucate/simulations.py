"""The simulations of the paper and of Hines et al. (2022), whose true importances are known.

`linear_data` is the low-dimensional one (LD), whose effect x1 + 2 x2 + x3 has the Sobol indices
(0.75, 3, 0.75, 0, 0, 0); `equicorrelated_data` has hundreds of correlated covariates; `semi_synthetic` puts
effects of a few of them on real covariates.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import expit

from hexad.core.errors import InputError
from hexad.core.validation import check_range


@dataclass(frozen=True)
class Sample:
    """A sample with what is never seen in practice.

    Attributes:
        X: covariates, (n, p); y: outcomes, (n,); treatment: 0 or 1, (n,).
        tau: the effect of each row, (n,).
        modifiers: which covariates it depends on, (p,).
    """

    X: Float[np.ndarray, "n p"]
    y: Float[np.ndarray, " n"]
    treatment: Int[np.ndarray, " n"]
    tau: Float[np.ndarray, " n"]
    modifiers: Bool[np.ndarray, " p"]


def sobol_linear(
    slopes: Float[np.ndarray, " p"], covariance: Float[np.ndarray, "p p"]
) -> Float[np.ndarray, " p"]:
    """Total Sobol indices of a linear effect of Gaussian covariates, b_j^2 / (Sigma^-1)_jj."""
    return slopes**2 / np.diag(np.linalg.inv(covariance))


def linear_data(n: int, seed: int, correlation: float = 0.5) -> Sample:
    """LD: six covariates in three pairs, after data-generating process 3 of Hines et al. (2022).

    tau = x1 + 2 x2 + x3, mu_0 = x3 - x6, logit e = -0.4 x1 + 0.1 x1 x2 + 0.2 x5; noise of deviation 3.

    Args:
        correlation: within the pairs (x1, x2), (x3, x4), (x5, x6).
    """
    check_range("correlation", correlation, -1, 1, low_open=True, high_open=True)
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6))
    X[:, 1::2] = correlation * X[:, ::2] + np.sqrt(1 - correlation**2) * X[:, 1::2]
    propensity = expit(-0.4 * X[:, 0] + 0.1 * X[:, 0] * X[:, 1] + 0.2 * X[:, 4])
    treatment = (rng.random(n) < propensity).astype(int)
    tau = X[:, 0] + 2 * X[:, 1] + X[:, 2]
    y = X[:, 2] - X[:, 5] + treatment * tau + 3 * rng.normal(size=n)
    return Sample(X, y, treatment, tau, np.arange(6) < 3)


def null_data(n: int, seed: int) -> Sample:
    """`linear_data` with the constant effect 1, so that every importance is 0."""
    sample = linear_data(n, seed)
    y = sample.y + sample.treatment * (1 - sample.tau)
    return Sample(sample.X, y, sample.treatment, np.ones(n), np.zeros(6, dtype=bool))


def equicorrelated_data(
    n: int,
    seed: int,
    p: int = 100,
    correlation: float = 0.3,
    important: int = 10,
    effect_size: float = 0.8,
) -> Sample:
    """HL: p covariates with one correlation among all; the effect, mu_0 and e share `important` of them.

    Slopes are +1 or -1; each of the three is scaled to unit variance, the effect then by `effect_size`;
    logistic propensity; noise of deviation 0.05 as in the authors' code.
    """
    if not 1 <= important <= p:
        raise InputError(f"important is {important}; it must lie in [1, p = {p}]")
    check_range("correlation", correlation, 0, 1, high_open=True)
    rng = np.random.default_rng(seed)
    X = np.sqrt(1 - correlation) * rng.normal(size=(n, p)) + np.sqrt(correlation) * rng.normal(size=(n, 1))
    chosen = rng.permutation(p)[:important]
    parts = []
    for _ in range(3):
        part = X[:, chosen] @ rng.choice([-1.0, 1.0], important)
        parts.append((part - part.mean()) / part.std())
    treatment = (rng.random(n) < expit(parts[1])).astype(int)
    tau = effect_size * parts[0]
    y = parts[2] + treatment * tau + 0.05 * rng.normal(size=n)
    return Sample(X, y, treatment, tau, np.isin(np.arange(p), chosen))


def semi_synthetic(
    X: Float[np.ndarray, "n p"],
    seed: int,
    modifiers: int = 8,
    family: Literal["linear", "steps"] = "linear",
    noise: float = 1.0,
) -> Sample:
    """Outcomes on given covariates: the effect depends on `modifiers` of them, chosen at random.

    Covariates are standardised; tau is the scaled sum of the modifiers with random signs (`"linear"`) or of
    their signs (`"steps"`), of unit variance; mu_0 and the propensity depend on eight others each.
    """
    if not 1 <= modifiers <= X.shape[1] - 8:
        raise InputError(f"modifiers is {modifiers}; X has {X.shape[1]} columns, and 8 are for other parts")
    rng = np.random.default_rng(seed)
    Z = (X - X.mean(axis=0)) / np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)

    def scaled(columns: Int[np.ndarray, " k"], values: Float[np.ndarray, "n p"]) -> Float[np.ndarray, " n"]:
        part = values[:, columns] @ rng.choice([-1.0, 1.0], len(columns))
        return (part - part.mean()) / max(float(part.std()), 1e-9)

    order = rng.permutation(X.shape[1])
    tau = 1 + scaled(order[:modifiers], Z if family == "linear" else np.sign(Z))
    mu0 = scaled(rng.permutation(X.shape[1])[:8], Z)
    propensity = expit(0.5 * scaled(rng.permutation(X.shape[1])[:8], Z))
    treatment = (rng.random(len(X)) < propensity).astype(int)
    y = mu0 + treatment * tau + noise * rng.normal(size=len(X))
    return Sample(X, y, treatment, tau, np.isin(np.arange(X.shape[1]), order[:modifiers]))
