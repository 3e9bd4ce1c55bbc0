"""What each sample weighs: the power transform, its baseline, and how many samples share the weight.

Xu (2025), equations of PGS and EPGS: grad F_N(mu) = sigma^-2 E[(x - mu) f_N(x)] with f_N = f^N or exp(N f).
Weights matter only up to a common positive factor, so that all is done with their logarithms less the
largest: no power overflows, and f needs no clipping.
"""

import warnings

import numpy as np
from jaxtyping import Float
from scipy.optimize import OptimizeWarning

from hexad.core.errors import InputError
from hexad.rl_graph.gs_poweropt.settings import Baseline, Settings

LOW_ESS = 1.5
"""Fewer effective samples than this, step after step, and the direction is that of a single sample."""
LOW_STEPS = 20
"""Steps in a row with so few before it is said."""


def log_weights(values: Float[np.ndarray, " K"], settings: Settings) -> Float[np.ndarray, " K"]:
    """log f_N of each sample, less the largest of them.

    Args:
        values: fun (to be minimised) at each sample, all finite.
        settings: transform, power, shift and scale.

    Raises:
        InputError: with `"power"`, f = shift - fun is not positive somewhere.
    """
    if settings.transform == "power":
        f = (settings.shift or 0.0) - values
        if not f.min() > 0:
            raise InputError(
                f"transform='power' needs shift - fun > 0 everywhere, and a sample has fun = "
                f"{values.max():.6g} with shift = {settings.shift}; give shift > {values.max():.6g}, or take "
                "transform='exp'"
            )
        logs = np.log(f)
    else:
        logs = -values
    with np.errstate(over="ignore", invalid="ignore"):
        logs = logs - logs.max()
        if settings.scale == "std":
            deviation = values.std()
            if not 1e-150 < deviation < 1e150 and (largest := np.abs(values).max()) > 0:
                # Squares would vanish or overflow.
                values = values / largest
                logs, deviation = values.min() - values, values.std()
            if deviation > 0:
                logs = logs / deviation
        return settings.power * logs


def weights(logs: Float[np.ndarray, " K"], baseline: Baseline) -> Float[np.ndarray, " K"]:
    """The weights of `log_weights`, with their mean subtracted if `baseline` is `"mean"`.

    The samples' displacements have mean 0, so that subtracting a constant changes no expectation; the mean
    holds each sample's own weight, which shortens the gradient by 1 - 1/K and leaves its direction.
    """
    if baseline == "none":
        return np.exp(logs)
    # expm1 keeps the digits of small powers, where all weights are 1 less a little.
    below_one = np.expm1(logs)
    return below_one - below_one.mean()


def effective_samples(logs: Float[np.ndarray, " K"]) -> float:
    """Kish's effective sample size of the weights, (sum w)^2 / sum w^2, from 1 to K."""
    positive = np.exp(logs)
    return float(positive.sum() ** 2 / np.square(positive).sum())


class EssWatch:
    """Warns once, after 20 steps in a row in which about one sample had all the weight."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.low = min(LOW_ESS, 1 + (settings.popsize - 1) / 10)
        self.steps = 0
        self.said = False

    def __call__(self, ess: float) -> None:
        """Take the effective samples of a step, NaN where there are none."""
        self.steps = self.steps + 1 if ess < self.low else 0
        if self.steps < LOW_STEPS or self.said:
            return
        self.said = True
        mend = "lower it, or divide fun"
        if self.settings.transform == "exp":
            mend += ", or pass scale='std'"
        warnings.warn(
            f"for {LOW_STEPS} steps about one sample of {self.settings.popsize} has had all the weight "
            f"(effective samples {ess:.2f}): power={self.settings.power:g} is too large for the range of "
            f"fun; {mend}",
            OptimizeWarning,
            stacklevel=4,
        )


def log_gradient(
    values: Float[np.ndarray, " K"], noise: Float[np.ndarray, "K d"], settings: Settings
) -> Float[np.ndarray, " d"]:
    """The estimate of grad log F_N(mu) from fun at mu + sigma * noise.

    It is sigma^-1 sum_i w_i noise_i / sum_i w_i: a ratio of two estimates, with a bias of order 1/K.
    """
    logs = log_weights(values, settings)
    return weights(logs, settings.baseline) @ noise / (settings.sigma * np.exp(logs).sum())


def without_failures(
    values: Float[np.ndarray, " K"], settings: Settings
) -> tuple[Float[np.ndarray, " K"], int | None]:
    """Values to weigh, and the index of the first that stops the run, if there is one.

    With `nan_policy="worst"` NaN and inf become the largest finite value; -inf is never taken, nor is a step
    in which nothing is finite changed.
    """
    finite = np.isfinite(values)
    if finite.all():
        return values, None
    lowest = values == -np.inf
    if settings.nan_policy == "raise" or lowest.any():
        return values, int(np.argmax(lowest if lowest.any() else ~finite))
    if not finite.any():
        return values, None
    return np.where(finite, values, values[finite].max()), None
