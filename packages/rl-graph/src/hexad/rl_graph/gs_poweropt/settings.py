"""The hyper-parameters of PGS and EPGS."""

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

from hexad.core.errors import InputError
from hexad.core.validation import check_choice, check_count, check_flag, check_range

Transform = Literal["exp", "power"]
Baseline = Literal["mean", "none"]
NanPolicy = Literal["raise", "worst"]
Scale = Literal["std"] | None


def count_of(what: str, value: Any, low: int = 1) -> int:
    """Return a whole number of at least `low`, NumPy's too, as an int, else raise `InputError`."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    return check_count(what, int(value) if whole else value, low)


@dataclass(frozen=True)
class Settings:
    """What a step does. The objective that is *maximised* inside is f = -fun.

    Args:
        transform: `"exp"` climbs exp(N f) (EPGS), `"power"` f^N (PGS), which needs f > 0.
        power: N of the paper. With `"exp"` it has the unit 1 / fun: what counts is N times the differences
            of fun among the samples.
        sigma: standard deviation of the samples in each variable, in units of x_scale; it never changes.
            The published code of PGS takes sigma for the variance, that of EPGS for the standard deviation;
            here it is always the latter.
        popsize: K, samples in a step.
        learning_rate: length of the first step, if `normalize`.
        decay: step t has the length learning_rate * decay / (decay + t); `inf` keeps it constant.
            The published code takes 1000 for EPGS and 5000 for PGS.
        normalize: divide the gradient by its norm, as the published code does. Without it a step is
            learning_rate times the estimated gradient of log F_N.
        baseline: `"mean"` subtracts the mean from the weights, which leaves the expected direction as it is
            and takes away noise (ours); `"none"` is the paper's own update.
        shift: with `"power"`, f = shift - fun.
        scale: `"std"` divides fun by its standard deviation among the samples of each step (ours), so that
            N has no unit; the smoothed objective is then another one in each step.
        nan_policy: what to do where fun gives NaN or inf: `"raise"`, or take it for the `"worst"` of its
            step. -inf is always refused, as nothing could be better.

    Raises:
        InputError: a value makes no sense.
    """

    transform: Transform = "exp"
    power: float = 2.0
    sigma: float = 1.0
    popsize: int = 100
    learning_rate: float = 0.1
    decay: float = 1000.0
    normalize: bool = True
    baseline: Baseline = "mean"
    shift: float | None = None
    scale: Scale = None
    nan_policy: NanPolicy = "raise"

    def __post_init__(self) -> None:
        check_choice("transform", self.transform, ("exp", "power"))
        check_choice("baseline", self.baseline, ("mean", "none"))
        check_choice("nan_policy", self.nan_policy, ("raise", "worst"))
        for name in ("power", "sigma", "learning_rate"):
            check_range(name, getattr(self, name), 0, low_open=True)
        object.__setattr__(self, "popsize", count_of("popsize", self.popsize, 2))
        if self.decay != math.inf:
            check_range("decay", self.decay, 0, low_open=True)
        check_flag("normalize", self.normalize)
        if self.scale is not None:
            check_choice("scale", self.scale, ("std",))
        if self.shift is not None:
            check_range("shift", self.shift)
            if self.transform == "exp":
                raise InputError("shift is for transform='power'; 'exp' does not depend on it, leave it out")
        if self.scale is not None and self.transform == "power":
            raise InputError(
                "scale is for transform='exp'; 'power' does not depend on the scale, leave it out"
            )

    def step_length(self, step: int) -> float:
        """alpha_t, the learning rate of step t = 0, 1, ..."""
        if math.isinf(self.decay):
            return self.learning_rate
        return self.learning_rate * self.decay / (self.decay + step)

    @property
    def accuracy(self) -> float:
        """sigma / sqrt(K): how near to the smoothed optimum iterates settle, in each variable's x_scale."""
        return self.sigma / math.sqrt(self.popsize)
