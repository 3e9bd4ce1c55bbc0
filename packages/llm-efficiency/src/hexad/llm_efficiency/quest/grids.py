"""The grids of QuEST and their scales: the paper's section 3.1, after arXiv 2502.05003v2 and its code.

A grid is a set of whole numbers, its levels; a row x of a matrix is rounded to `unit * levels`, where
unit = a / max(levels) and a = alpha* rms(x). The constant alpha* minimises E (xi - Q(xi))^2 over
xi ~ N(0, 1), to which the Hadamard transform brings the rows.
"""

import functools
import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from hexad.core.errors import InputError
from hexad.core.validation import check_choice

Bits = int | float | Literal["ternary", "fp4"]
"""1 to 8, or 16 for checks; 1.585 is "ternary" (log2 of three levels); "fp4" is E2M1."""

Constants = Literal["exact", "official"]

# The constants in the authors' code (OPTIMAL_GAUSSIAN_SCALES), which stray from the optimum at 6 to 8 bits.
OFFICIAL = {
    1: 0.79788,
    2: 1.4935346,
    3: 2.0510684,
    4: 2.5139306,
    5: 2.9160939,
    6: 3.2765973,
    7: 3.6010497,
    8: 3.8849387,
    "ternary": 1.2240090,
}


@dataclass(frozen=True)
class Grid:
    """The levels of a quantiser.

    Attributes:
        name: number of bits, "ternary" or "fp4".
        levels: whole numbers in ascending order, symmetric around 0; a code is an index into them.
    """

    name: int | str
    levels: tuple[int, ...]

    @property
    def top(self) -> int:
        """The largest level."""
        return self.levels[-1]

    @property
    def half_gap(self) -> float:
        """Half the largest gap between levels: no value within the grid is further from its level."""
        return max(high - low for low, high in zip(self.levels[:-1], self.levels[1:], strict=True)) / 2

    @property
    def is_mid_rise(self) -> bool:
        """Evenly spaced without a level at 0, as all grids of a whole number of bits are."""
        return isinstance(self.name, int)


def check_bits(what: str, bits: Bits) -> int | Literal["ternary", "fp4"]:
    """The name of the grid that `bits` asks for.

    Raises:
        InputError: anything else than 1 to 8, 16, 1.585, "ternary" and "fp4".
    """
    if isinstance(bits, str) and bits in ("ternary", "fp4"):
        return bits
    if not isinstance(bits, bool) and isinstance(bits, (int, float)):
        if bits in (*range(1, 9), 16):
            return int(bits)
        if abs(bits - 1.585) < 1e-3:
            return "ternary"
    raise InputError(f"{what} is {bits!r}; give 1 to 8, 'ternary' (1.585 bits), 'fp4', or 16 for checks")


@functools.cache
def grid_for(bits: Bits) -> Grid:
    """The grid of `bits`: mid-rise (no zero) for whole bits, mid-tread for "ternary", E2M1 for "fp4".

    Mid-rise levels are the odd numbers -(2^b - 1), ..., 2^b - 1, so that the step between them is two units.
    FP4's are twice the numbers of E2M1.

    Raises:
        InputError: see `check_bits`.
    """
    name = check_bits("bits", bits)
    if name == "ternary":
        return Grid(name, (-1, 0, 1))
    if name == "fp4":
        positive = (1, 2, 3, 4, 6, 8, 12)
        return Grid(name, (*(-level for level in reversed(positive)), 0, *positive))
    n = 2**name
    return Grid(name, tuple(range(1 - n, n, 2)))


def _cells(grid: Grid) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """The levels and the lower ends of their cells, in units; half-way between neighbours."""
    # On the CPU by name: models are also built on the meta device, where nothing is computed.
    levels = torch.tensor(grid.levels, dtype=torch.float64, device="cpu")
    return levels, (levels[1:] + levels[:-1]) / 2


def _density(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)


def _moments(grid: Grid, unit: float) -> tuple[float, float]:
    """E[xi L] and E[L^2], where L is the level of xi ~ N(0, 1) in a grid with this unit."""
    levels, middles = _cells(grid)
    edges = middles * unit
    density = torch.nn.functional.pad(_density(edges), (1, 1))
    # Probabilities from the nearer tail, where they lose no digits.
    below = torch.nn.functional.pad(torch.special.ndtr(edges), (1, 0))
    above = torch.nn.functional.pad(torch.special.ndtr(-edges), (0, 1))
    left = torch.nn.functional.pad(torch.special.ndtr(edges), (0, 1), value=1.0) - below
    right = torch.nn.functional.pad(torch.special.ndtr(-edges), (1, 0), value=1.0) - above
    mass = torch.where(levels < 0, left, right)
    product = levels * (density[:-1] - density[1:])
    return float(product.sum()), float((levels.square() * mass).sum())


def gaussian_error(bits: Bits, alpha: float) -> float:
    """E (xi - Q(xi))^2 over xi ~ N(0, 1) for a grid that ends at +-alpha, in closed form."""
    grid = grid_for(bits)
    unit = alpha / grid.top
    product, square = _moments(grid, unit)
    return 1 - 2 * unit * product + unit**2 * square


@functools.cache
def _optimal(bits: int | str) -> float:
    """alpha*, the root of d/d(alpha) E (xi - Q(xi))^2.

    Cells end half-way between levels, so that moving an end changes nothing to first order, and the
    derivative is -2 E[xi L] + 2 unit E[L^2]: negative where the grid is too narrow, positive where too wide.
    """
    grid = grid_for(bits)
    low, high = 0.0, 16.0
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        product, square = _moments(grid, middle / grid.top)
        if square * middle / grid.top < product:
            low = middle
        else:
            high = middle


def scale_for(bits: Bits, constants: Constants = "exact") -> float:
    """alpha*: where the grid of `bits` ends, in units of the root mean square.

    Args:
        bits: see `Bits`.
        constants: "exact" computes it; "official" takes the number in the authors' code where it has one.

    Raises:
        InputError: an unknown grid, or "official" for one that the authors' code has no constant for.
    """
    name = check_bits("bits", bits)
    check_choice("constants", constants, ("exact", "official"))
    if constants == "exact":
        return _optimal(name)
    if name not in OFFICIAL:
        raise InputError(f"the authors' code has no constant for bits={bits!r}; take constants='exact'")
    return OFFICIAL[name]


def code_levels(grid: Grid, *, sparse: bool = False) -> tuple[int, ...]:
    """The level of each code of a packed weight; with sparsity a last one of 0 where the grid has none.

    Raises:
        InputError: 16 bits, which are for checks and never packed.
    """
    if grid.top >= 2**8:
        raise InputError(f"codes of {grid.name} bits are not packed; 8 is the most")
    return grid.levels + (0,) * (sparse and grid.is_mid_rise)
