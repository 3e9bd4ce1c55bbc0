"""Rounding a row to its grid and the trust mask of its gradient: steps 2 to 4 of QuEST.

    rms = sqrt(mean(x^2))          a = alpha* rms + 1e-8            (per row; no gradient flows through them)
    q = round(clamp(x, -a, a) / step + 1/2) - 1/2,  step = 2 a / (n - 1)                  (mid-rise grids)
    M = [ |x_q - x| <= T ],  T = half the largest gap between levels

Source: arXiv 2502.05003v2, section 3 and algorithm 1; the narrowed mask of one bit is appendix's "outer
trust region" as the authors' sweep has it. Everything here is in the Hadamard domain already.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hexad.core.errors import InputError
from hexad.core.validation import check_choice, check_flag, check_range
from hexad.llm_efficiency.quest.grids import Bits, Constants, Grid, check_bits, grid_for, scale_for

EPSILON = 1e-8
"""Added to a: a row of zeros becomes +-1e-8 on the outermost mid-rise levels, and not 0 / 0."""

OUTER_SCALE = 1.30
"""s of the one-bit mask [ |x| <= s a ] behind a Hadamard transform; the paper has 1.25 without one."""

Trust = Literal["default", "none"] | float
"""T in units of half the largest gap, "default" (1, and `outer_scale` at one bit), or "none": M = 1."""

GROUP = 8
"""Of each eight neighbours 2:4-style sparsity keeps two pairs of four."""


class Quantized(NamedTuple):
    """What `quantize` gives.

    Attributes:
        values: x on the grid, in the dtype of x.
        codes: indices into the grid's levels, ascending; where sparsity dropped an entry, the number of
            levels.
        scale: the unit of each row, in float32 (float64 for float64): values = scale * levels.
        mask: M, where the gradient passes.
    """

    values: Float[Tensor, "*rows k"]
    codes: Int[Tensor, "*rows k"]
    scale: Float[Tensor, "*rows"]
    mask: Bool[Tensor, "*rows k"]


@dataclass(frozen=True)
class Rule:
    """How rows are rounded; `make_rule` makes one.

    Attributes:
        grid: the levels.
        alpha: alpha*, where the grid ends in units of the root mean square.
        trust, outer_scale: of the mask.
        sparse: 2:4-style sparsity first.
    """

    grid: Grid
    alpha: float
    trust: Trust = "default"
    outer_scale: float = OUTER_SCALE
    sparse: bool = False

    def row_scale(self, x: Float[Tensor, "*rows k"]) -> Float[Tensor, "*rows 1"]:
        """a = alpha* rms(x) + 1e-8 of each row, where its grid ends.

        The squares are summed in float64, so that no order of summation shows: the packed layer, whose kernel
        sums in another, comes to the same scale and so to the same codes.
        """
        accurate = x.dtype if x.device.type == "mps" else torch.float64  # Metal has no float64
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=accurate)
        return (norm / math.sqrt(x.shape[-1])).to(x.dtype).mul_(self.alpha).add_(EPSILON)

    @property
    def reach(self) -> float | None:
        """How far the mask reaches in units of a; None where every gradient passes."""
        if self.trust in ("none", math.inf):
            return None
        if self.trust == "default":
            return self.outer_scale if self.grid.name == 1 else 1 + self.grid.half_gap / self.grid.top
        return 1 + self.trust * self.grid.half_gap / self.grid.top


def make_rule(
    bits: Bits,
    *,
    trust: Trust = "default",
    outer_scale: float = OUTER_SCALE,
    constants: Constants = "exact",
    sparse: bool = False,
) -> Rule:
    """The rule of a grid with its constant.

    Raises:
        InputError: an unknown grid, settings out of their range, "official" constants that there are not.
    """
    if isinstance(trust, bool) or isinstance(outer_scale, bool):
        raise InputError("trust and outer_scale are numbers, not True or False")
    if isinstance(trust, str):
        check_choice("trust", trust, ("default", "none"))
    elif trust != math.inf:
        check_range("trust", trust, 0, low_open=True)
    check_range("outer_scale", outer_scale, 1)
    check_flag("sparse", sparse)
    bits = check_bits("bits", bits)
    return Rule(grid_for(bits), scale_for(bits, constants), trust, outer_scale, sparse)


def round_to_levels(
    x: Float[Tensor, "*rows k"], a: Float[Tensor, "*rows 1"], grid: Grid
) -> Float[Tensor, "*rows k"]:
    """The nearest levels, whole numbers as floats (exact in bfloat16 up to 8 bits).

    Operation by operation this is the arithmetic of `hexad.kernels.low_bit_linear`, so that codes agree.
    """
    clamped, unit = x.clamp(-a, a), a / grid.top
    if grid.is_mid_rise:
        # level = 2 (round(x / step + 1/2) - 1/2); in place, as these passes are what the layer costs.
        return clamped.div_(2 * unit).add_(0.5).round_().mul_(2).sub_(1)
    if grid.top == 1:
        return clamped.div_(unit).round_()
    levels = torch.tensor(grid.levels, dtype=x.dtype, device=x.device)
    middles = (levels[1:] + levels[:-1]) / 2
    return levels[torch.bucketize(clamped.div_(unit), middles)]


def trust_mask(
    x: Float[Tensor, "*rows k"], a: Float[Tensor, "*rows 1"], levels: Float[Tensor, "*rows k"], rule: Rule
) -> Bool[Tensor, "*rows k"] | None:
    """M = [ |x_q - x| <= T ]; None where every gradient passes.

    Within [-a, a] the error is never above half the largest gap, so with T of that or more the mask is
    |x| <= a + T, which no rounding of x_q - x disturbs. At one bit the default is |x| <= s a instead.
    """
    if rule.reach is None:
        return None
    if isinstance(rule.trust, str) or rule.trust >= 1:
        return x.abs() <= a * rule.reach
    unit = a / rule.grid.top
    return (levels * unit - x).abs() <= unit * (rule.trust * rule.grid.half_gap)


def sparse_mask(x: Float[Tensor, "*rows k"]) -> Bool[Tensor, "*rows k"]:
    """Which entries 2:4-style sparsity keeps: of each 8 neighbours the two pairs with the largest norms."""
    pairs = x.reshape(*x.shape[:-1], x.shape[-1] // GROUP, GROUP // 2, 2)
    best = pairs.square().sum(-1).argsort(dim=-1, descending=True, stable=True)[..., : GROUP // 4]
    kept = torch.zeros(pairs.shape[:-1], dtype=torch.bool, device=x.device).scatter(-1, best, True)
    return kept.unsqueeze(-1).expand_as(pairs).reshape(x.shape)


class Rounded(NamedTuple):
    """Rows on their grid as the layer multiplies them.

    Attributes:
        levels: whole numbers; 0 where sparsity dropped an entry.
        scale: the unit of each row.
        mask: M, or None where every gradient passes.
    """

    levels: Float[Tensor, "*rows k"]
    scale: Float[Tensor, "*rows 1"]
    mask: Bool[Tensor, "*rows k"] | None


def round_rows(x: Float[Tensor, "*rows k"], rule: Rule, a: Float[Tensor, "*rows 1"] | None = None) -> Rounded:
    """Steps 2 to 4 for rows in float32 (or float64) that were checked at the door; `a` fixes the scale.

    Sparse rows are sparsified first, scaled by what is left with its zeros, and rounded; the error that the
    mask compares is the whole one, which for a dropped entry is the entry itself.
    """
    kept = sparse_mask(x) if rule.sparse else None
    dense = x if kept is None else x * kept
    if a is None:
        a = rule.row_scale(dense)
    levels = round_to_levels(dense, a, rule.grid)
    mask = trust_mask(x, a, levels, rule)
    unit = a / rule.grid.top
    if kept is not None:
        levels = levels * kept
        if mask is not None:
            gap = rule.grid.half_gap * (1 if isinstance(rule.trust, str) else rule.trust)
            mask = torch.where(kept, mask, x.abs() <= unit * gap)
    return Rounded(levels, unit, mask)


def check_floating(what: str, x: Tensor) -> Tensor:
    """Return `x` if it is a tensor of real floating-point numbers, else raise `InputError`."""
    if not isinstance(x, Tensor):
        raise InputError(f"{what} must be a tensor, not {type(x).__name__}")
    if not x.is_floating_point():
        raise InputError(f"{what} is of {x.dtype}; give floating-point numbers (x.float())")
    if x.itemsize < 2:
        raise InputError(f"{what} is of {x.dtype}; give bfloat16, float16, float32 or float64")
    if x.layout != torch.strided:
        raise InputError(f"{what} is a {str(x.layout).removeprefix('torch.')} tensor; give a dense one")
    return x


def quantize(
    x: Float[Tensor, "*rows k"],
    bits: Bits,
    *,
    trust: Trust = "default",
    outer_scale: float = OUTER_SCALE,
    constants: Constants = "exact",
    sparse: bool = False,
    scale: Float[Tensor, "*rows"] | None = None,
) -> Quantized:
    """Round each row (last dimension) to its grid; without Hadamard transform and without gradient.

    Args:
        x: in any floating-point dtype; half precisions are computed in float32.
        bits: see `Bits`.
        trust: T in units of half the largest gap; "default" also takes `outer_scale` at one bit; "none"
            lets every gradient pass.
        outer_scale: s of the one-bit mask [ |x| <= s a ]; 2 is the mask of the other widths.
        constants: "exact" or "official" values of alpha*.
        sparse: first keep two pairs of four in each eight neighbours (2:4-style, the paper's appendix).
        scale: the unit of each row, instead of the one that fits it.

    A row of zeros has a = 1e-8: mid-rise grids have no zero, so it comes out as +-1e-8 (2 / n of it at most).

    Raises:
        InputError: an unknown grid, no floating-point tensor, an empty row, NaN or infinity, a row whose
            length 8 does not divide with `sparse`, settings out of their range, a scale of another shape.
    """
    rule = make_rule(bits, trust=trust, outer_scale=outer_scale, constants=constants, sparse=sparse)
    grid = rule.grid
    check_floating("x", x)
    if x.dim() == 0 or x.shape[-1] == 0:
        raise InputError(f"x has shape {tuple(x.shape)}; its last dimension must hold the row to quantise")
    if sparse and x.shape[-1] % GROUP:
        raise InputError(f"rows of {x.shape[-1]} cannot be sparsified; {GROUP} must divide their length")
    if x.is_meta:
        raise InputError("x is on the meta device and holds no numbers; give one with values")
    wide = x.detach().to(torch.promote_types(x.dtype, torch.float32))
    if not torch.compiler.is_compiling() and not bool(wide.isfinite().all()):
        raise InputError("x holds NaN or infinity; nothing rounds to a grid from there")
    a = None
    if scale is not None:
        if check_floating("scale", scale).shape != x.shape[:-1]:
            raise InputError(
                f"scale has shape {tuple(scale.shape)}; give one number a row: {tuple(x.shape[:-1])}"
            )
        if not bool(((scale > 0) & scale.isfinite()).all()):
            raise InputError("every scale must be positive and finite")
        a = (scale.to(wide.dtype) * grid.top).unsqueeze(-1)
    rounded = round_rows(wide, rule, a)
    if not torch.compiler.is_compiling() and not bool((rounded.scale * grid.top).isfinite().all()):
        raise InputError("x or its scale is too large: where the grid ends is no finite number")
    mask = torch.ones_like(x, dtype=torch.bool) if rounded.mask is None else rounded.mask
    values = (rounded.levels * rounded.scale).to(x.dtype)
    codes = codes_of(rounded.levels, grid, sparse=sparse)
    return Quantized(values, codes, rounded.scale.squeeze(-1), mask)


def codes_of(levels: Float[Tensor, "*rows k"], grid: Grid, *, sparse: bool = False) -> Int[Tensor, "*rows k"]:
    """Indices of the levels, as uint8 where they fit, else int32; the zeros of a sparse row come last."""
    dtype = torch.uint8 if len(grid.levels) + sparse <= 256 else torch.int32
    if grid.is_mid_rise:
        codes = ((levels + grid.top) / 2).to(dtype)
    else:
        known = torch.tensor(grid.levels, dtype=levels.dtype, device=levels.device)
        codes = torch.searchsorted(known, levels.contiguous()).to(dtype)
    if sparse and grid.is_mid_rise:
        codes = torch.where(levels == 0, torch.full_like(codes, len(grid.levels)), codes)
    return codes
