"""Integrating a velocity field from noise to conformers: Euler and Tsitouras' 5th order method.

The solvers know neither networks nor molecules: a field is any `(x, t) -> dx/dt` with t a number.
"""

import itertools
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from hexad.core.validation import check_choice, check_count, check_range
from hexad.science_ml.avgflow.flow import T_MAX

Field = Callable[[Tensor, float], Tensor]
Grid = Literal["uniform", "log"]
Solver = Literal["euler", "tsit5"]

# Tsitouras, Computers and Mathematics with Applications 62 (2011), table 1; the seventh stage serves error
# estimates alone and is left out, as the steps are given.
_TSIT5_TIMES = (0.0, 0.161, 0.327, 0.9, 0.9800255409045097, 1.0)
_TSIT5_STAGES = (
    (0.161,),
    (-0.008480655492356989, 0.335480655492357),
    (2.8971530571054935, -6.359448489975075, 4.3622954328695815),
    (5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525),
    (5.86145544294642, -12.92096931784711, 8.159367898576159, -0.071584973281401, -0.028269050394068383),
)
_TSIT5_WEIGHTS = (
    0.09646076681806523,
    0.01,
    0.4798896504144996,
    1.379008574103742,
    -3.290069515436081,
    2.324710524099774,
)


def time_grid(steps: int, kind: Grid = "uniform", *, power: float = 2.0, end: float = 1.0) -> list[float]:
    """`steps + 1` times from 0 to `end`.

    Args:
        steps: of the integration.
        kind: `log` is dense near 1: 1 - logspace(-power, 0) turned round, stretched onto [0, 0.999], then 1.
        power: decades that the logarithmic grid spans.
        end: last time; below 1 for the exact field, which ends there.

    Raises:
        InputError: steps below 1, an unknown kind, or an end outside (0, 1].
    """
    check_count("steps", steps)
    check_range("end", end, 0, 1, low_open=True)
    check_choice("grid", kind, ("uniform", "log"))
    if kind == "uniform" or steps == 1:
        return (torch.linspace(0, 1, steps + 1, dtype=torch.float64) * end).tolist()
    check_range("power", power, 0, low_open=True)
    grid = (1 - torch.logspace(-power, 0, steps, dtype=torch.float64)).flip(0)
    return [*(grid / grid[-1] * T_MAX * end).tolist(), end]


@torch.no_grad()
def integrate(
    field: Field, x0: Float[Tensor, "*batch 3"], times: list[float], solver: Solver = "euler"
) -> Float[Tensor, "*batch 3"]:
    """x at the last of `times`, from x0 at the first, one solver step between neighbours.

    Euler evaluates the field once a step, at its start; `tsit5` six times, the last at its end.
    """
    check_choice("solver", solver, ("euler", "tsit5"))
    x = x0
    for start, stop in itertools.pairwise(times):
        step = stop - start
        slopes = [field(x, start)]
        if solver == "euler":
            x = x + step * slopes[0]
            continue
        for fraction, row in zip(_TSIT5_TIMES[1:], _TSIT5_STAGES, strict=True):
            shift = sum(weight * slope for weight, slope in zip(row, slopes, strict=True))
            slopes.append(field(x + step * shift, start + fraction * step))
        x = x + step * sum(weight * slope for weight, slope in zip(_TSIT5_WEIGHTS, slopes, strict=True))
    return x
