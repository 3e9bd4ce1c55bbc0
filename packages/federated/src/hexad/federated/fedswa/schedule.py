"""Learning rates: the cycle within a round (FedSWA, arXiv 2507.20016) and the course over rounds."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from hexad.core.validation import check_choice, check_count, check_range

Course = Literal["constant", "cosine", "exponential"]


def check_steps(steps: int) -> int:
    """K as an int, numpy's whole numbers included; `InputError` where it is none or below 1."""
    return check_count("local_steps", int(steps) if isinstance(steps, np.integer) else steps)


def check_cycle(lr: float, steps: int, rho: float) -> None:
    """Refuse (`InputError`) a rate that is not positive, fewer than one step, or rho outside (0, 1]."""
    check_range("lr", lr, 0, low_open=True)
    check_steps(steps)
    check_range("rho", rho, 0, 1, low_open=True)


def cyclic_lrs(lr: float, steps: int, rho: float) -> list[float]:
    """The rates of a round's local steps: eta_k = lr (1 - k/K) + (k/K) rho lr for k = 0 ... K - 1.

    The first is `lr` itself; the last stays above rho lr. Every round begins anew.

    Args:
        lr: eta_l, the rate that the round begins with.
        steps: K, the local steps of the round.
        rho: where the line heads to, as a share of `lr`, in (0, 1]; 1 keeps the rate.

    Raises:
        InputError: an argument is out of range.
    """
    check_cycle(lr, steps, rho)
    return [lr * (1 - k / steps) + (k / steps) * rho * lr for k in range(steps)]


def sum_cyclic_lrs(lr: float, steps: int, rho: float) -> float:
    """The sum of `cyclic_lrs` in closed form: lr (K (1 + rho) + (1 - rho)) / 2."""
    check_cycle(lr, steps, rho)
    return lr * (steps * (1 + rho) + (1 - rho)) / 2


@dataclass(frozen=True)
class RoundSchedule:
    """How the rate that a round begins with changes from round to round.

    Args:
        course: `"constant"`; `"cosine"` falls to 0 over the rounds of the run; `"exponential"` multiplies by
            `decay` after each.
        decay: for `"exponential"`; 0.998 in the authors' scripts.
    """

    course: Course = "constant"
    decay: float = 0.998

    def __post_init__(self) -> None:
        check_choice("course", self.course, get_args(Course))
        check_range("decay", self.decay, 0, 1, low_open=True)

    def rate(self, lr: float, number: int, rounds: int) -> float:
        """The rate of round `number` (1, 2, ...) of `rounds`."""
        check_count("number", number)
        if self.course == "cosine":
            check_count("rounds", rounds, number)
            return lr * 0.5 * (1 + math.cos(math.pi * (number - 1) / rounds))
        return lr * self.decay ** (number - 1) if self.course == "exponential" else lr
