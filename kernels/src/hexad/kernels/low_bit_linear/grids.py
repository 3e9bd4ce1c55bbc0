"""Grids of few levels as integers times a unit, and the rounding of rows to them (QuEST, arXiv 2502.05003).

========  =====================================================  =========================================
grid      integer levels by code                                 unit of a row with a = alpha * rms + 1e-8
========  =====================================================  =========================================
b bits    -(n - 1), -(n - 3), ..., n - 1 with n = 2**b (odd)     a / (n - 1), half the step
ternary   -1, 0, 1                                               a
fp4       the E2M1 patterns 0, 1, 2, 3, 4, 6, 8, 12, -0, -1, ... a / 12, half of E2M1's unit
========  =====================================================  =========================================
"""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float, Int16, UInt8
from torch import Tensor

from hexad.core.errors import InputError
from hexad.core.validation import check_range

GridName = int | Literal["ternary", "fp4"]
# Half units of E2M1: 0, .5, 1, 1.5, 2, 3, 4, 6.
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12)
SMALLEST_BOUND = 1e-8
"""Keeps the unit of a row of zeros above zero."""


@dataclass(frozen=True)
class ActivationGrid:
    """How the rows of the input are rounded.

    Attributes:
        bits: 1 to 8 for the symmetric grid without zero, "ternary" or "fp4".
        alpha: the largest level over the row's root mean square.
    """

    bits: GridName
    alpha: float

    def __post_init__(self) -> None:
        check_grid(self.bits)
        check_range("alpha", self.alpha, 0, low_open=True)


def check_grid(bits: GridName) -> None:
    """Reject what names no grid."""
    if bits in ("ternary", "fp4"):
        return
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 8:
        raise InputError(f"bits must be a whole number from 1 to 8, 'ternary' or 'fp4', got {bits!r}")


# A grid travels as a number where a union cannot: in the schema of the operator and in C.
_NUMBERS: dict[GridName, int] = {"ternary": 9, "fp4": 10}


def grid_number(activation: ActivationGrid | None) -> int:
    """The number of a grid: its bits, 9 for ternary, 10 for fp4, 0 for none."""
    if activation is None:
        return 0
    return activation.bits if isinstance(activation.bits, int) else _NUMBERS[activation.bits]


@cache
def grid_of(number: int, alpha: float) -> ActivationGrid | None:
    """The grid of a number."""
    if number == 0:
        return None
    names: dict[int, GridName] = {known: name for name, known in _NUMBERS.items()}
    return ActivationGrid(names.get(number, number), alpha)


def code_bits(bits: GridName) -> int:
    """Bits of a packed code: 2 for ternary, 4 for fp4."""
    return bits if isinstance(bits, int) else {"ternary": 2, "fp4": 4}[bits]


def integer_levels(bits: GridName) -> Int16[Tensor, " levels"]:
    """The integer that each code of a grid stands for."""
    check_grid(bits)
    return torch.tensor(_levels(bits), dtype=torch.int16)


@cache
def _levels(bits: GridName) -> tuple[int, ...]:
    if bits == "ternary":
        return (-1, 0, 1)
    if bits == "fp4":
        return _E2M1 + tuple(-level for level in _E2M1)
    n = 2**bits
    return tuple(range(1 - n, n, 2))


def quantize_rows(
    x: Float[Tensor, "*batch k"], grid: ActivationGrid
) -> tuple[UInt8[Tensor, "*batch k"], Float[Tensor, "*batch"]]:
    """The code of the level nearest to each entry, and the unit of each row: x is about unit * level.

    Arithmetic is that of float32, operation by operation, but for the mean square: its sum runs in float64,
    so that no order of summation shows in its float32 root. A tie goes to the even side (for the symmetric
    grid that of `round(x / step + 1/2)`, for fp4 the even pattern). A row of zeros has the bound 1e-8, and
    on the symmetric grid its entries are the level next below zero.
    """
    x = x.to(torch.float32)
    rms = x.to(torch.float64).square().mean(-1, keepdim=True).sqrt().to(torch.float32)
    bound = grid.alpha * rms + SMALLEST_BOUND
    largest = max(_levels(grid.bits))
    unit = bound / largest
    inside = torch.minimum(torch.maximum(x, -bound), bound)
    if grid.bits == "ternary":
        codes = torch.round(inside / unit) + 1
    elif grid.bits == "fp4":
        codes = _nearest_e2m1(inside / unit)
    else:
        codes = torch.round(inside / (2 * unit) + 0.5) + (2**grid.bits // 2 - 1)
    return codes.to(torch.uint8), unit.squeeze(-1)


def _nearest_e2m1(scaled: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch k"]:
    magnitude = scaled.abs()
    code = torch.zeros_like(magnitude)
    for lower, (low, high) in enumerate(pairwise(_E2M1)):
        middle = (low + high) / 2
        code += magnitude >= middle if lower % 2 else magnitude > middle
    return torch.where(torch.signbit(scaled), code + 8, code)
