"""The objective of a fit: the sum of Huber losses of ln L_predicted - ln L_observed, with its gradient.

Source: arXiv 2502.05172, appendix on fitting; Hoffmann et al. 2022, section 3.3. ln L is a logsumexp of three
log-terms, in which a, b and c stand as logarithms. It is a sum and not a mean: an optimiser whose tolerance
is absolute stops a mean too early.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp, softmax

from hexad.llm_efficiency.moe_laws.runs import Runs

HUBER_DELTA = 0.01
COEFFICIENTS = ("a", "delta", "alpha", "gamma", "b", "omega", "beta", "zeta", "c", "e_start", "e_max")
"""In the order of the vector that is optimised."""
A, DELTA, ALPHA, GAMMA, B, OMEGA, BETA, ZETA, C, START, MAX = range(11)

Vector = Float[np.ndarray, " 11"]


def to_vector(coefficients: Mapping[str, float]) -> Vector:
    """Coefficients as unconstrained numbers: a, b, c, E_start and E_max/E_start - 1 as logarithms.

    A zero a, b or c and an infinite E_max become infinite entries, which a fit must hold fixed.
    """
    theta = np.array([coefficients[name] for name in COEFFICIENTS], dtype=np.float64)
    with np.errstate(divide="ignore"):
        theta[MAX] = np.log(theta[MAX] / theta[START] - 1)
        theta[[A, B, C, START]] = np.log(theta[[A, B, C, START]])
    return theta


def from_vector(theta: Vector) -> dict[str, float]:
    """The coefficients of a vector."""
    values = theta.copy()
    values[[A, B, C, START]] = np.exp(theta[[A, B, C, START]])
    values[MAX] = values[START] * (1 + np.exp(theta[MAX]))
    return dict(zip(COEFFICIENTS, map(float, values), strict=True))


@dataclass(frozen=True)
class Objective:
    """Σ w Huber(ln L_predicted - ln L_observed) over runs, as a function of the vector of coefficients.

    Args:
        runs: what is fitted.
        weights: of the runs.
        delta: where Huber's loss turns from a parabola into a line.
        reduction: `"mean"` is there to be compared with.
    """

    runs: Runs
    weights: Float[np.ndarray, " runs"]
    delta: float = HUBER_DELTA
    reduction: Literal["sum", "mean"] = "sum"
    _logs: tuple[np.ndarray, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        logs = tuple(np.log(values) for values in (self.runs.n_active, self.runs.tokens, self.runs.loss))
        object.__setattr__(self, "_logs", logs)

    def log_hat(
        self, theta: Vector
    ) -> tuple[Float[np.ndarray, " runs"], Float[np.ndarray, " runs"], Float[np.ndarray, " runs"]]:
        """ln Eh, and its derivatives by ln E_start and by ln(E_max/E_start - 1)."""
        start, odds = np.exp(theta[START]), np.exp(theta[MAX])
        # 1/E_start - 1/E_max = odds / (1 + odds) / E_start, without a difference of close numbers.
        share = 1.0 if np.isinf(odds) else odds / (1 + odds)
        first = self.runs.experts - 1 + start / share
        inverse_max = 0.0 if np.isinf(odds) else 1 / (start * (1 + odds))
        inverse = 1 / first + inverse_max
        by_start = (start / share / first**2 + inverse_max) / inverse
        # d(start/share) / d ln odds = -start / odds, d inverse_max / d ln odds = -inverse_max * share.
        by_odds = np.zeros_like(first)
        if np.isfinite(odds):
            by_odds = (-start / odds / first**2 + inverse_max * share) / inverse
        return -np.log(inverse), by_start, by_odds

    def log_loss(
        self, theta: Vector, derivatives: bool = False
    ) -> tuple[Float[np.ndarray, " runs"], Float[np.ndarray, "runs 11"] | None]:
        """ln L of every run, a logsumexp of three log-terms, and where asked its derivatives."""
        n, d, _ = self._logs
        h, by_start, by_odds = self.log_hat(theta)
        size = theta[A] + theta[DELTA] * h + (theta[ALPHA] + theta[GAMMA] * h) * n
        data = theta[B] + theta[OMEGA] * h + (theta[BETA] + theta[ZETA] * h) * d
        terms = np.stack([size, data, np.full_like(size, theta[C])], axis=1)
        if not derivatives:
            return logsumexp(terms, axis=1), None
        p, q, r = softmax(terms, axis=1).T
        by_hat = p * (theta[DELTA] + theta[GAMMA] * n) + q * (theta[OMEGA] + theta[ZETA] * d)
        columns = [
            p,
            p * h,
            p * n,
            p * h * n,
            q,
            q * h,
            q * d,
            q * h * d,
            r,
            by_hat * by_start,
            by_hat * by_odds,
        ]
        return logsumexp(terms, axis=1), np.stack(columns, axis=1)

    def residuals(self, theta: Vector) -> Float[np.ndarray, " runs"]:
        """ln L_predicted - ln L_observed."""
        return self.log_loss(theta)[0] - self._logs[2]

    def rho(self, squares: Float[np.ndarray, " runs"]) -> Float[np.ndarray, "3 runs"]:
        """Huber's loss as SciPy's `least_squares` takes it: of (residual / delta)², with derivatives."""
        far = squares > 1
        root = np.sqrt(np.where(far, squares, 1.0))
        values = np.where(far, 2 * root - 1, squares)
        return self.weights * np.stack([values, 1 / root, np.where(far, -0.5 / root**3, 0.0)])

    def __call__(self, theta: Vector) -> tuple[float, Vector]:
        """The objective and its gradient."""
        log_loss, jacobian = self.log_loss(theta, derivatives=True)
        assert jacobian is not None
        residual = log_loss - self._logs[2]
        clipped = np.clip(residual, -self.delta, self.delta)
        values = clipped * (residual - clipped / 2)  # Huber: r²/2 within delta, delta (|r| - delta/2) beyond
        scale = 1.0 if self.reduction == "sum" else 1 / len(residual)
        weights = scale * self.weights
        return float(weights @ values), (weights * clipped) @ jacobian

    def centring(self, free: np.ndarray) -> Float[np.ndarray, "free free"]:
        """T with theta[free] = T z, in whose z the logarithms of N and D are centred.

        Uncentred, the logarithm of a coefficient and its exponent are all but collinear, and L-BFGS crawls.
        """
        n, d, _ = self._logs
        matrix = np.eye(11)
        for level, slope, mean in ((A, ALPHA, n.mean()), (B, BETA, d.mean())):
            matrix[level, slope] = -mean
        for level, slope, mean in ((DELTA, GAMMA, n.mean()), (OMEGA, ZETA, d.mean())):
            matrix[level, slope] = -mean
        return matrix[np.ix_(free, free)]
