"""Hilbert order of the points of a 1D, 2D or 3D grid (Sec. 3.7 of arXiv 2502.18137).

Tokens that lie close in the image or video are laid close in the sequence, so the tokens of a block resemble
one another and more blocks pass the self-similarity judge. Attention without a causal mask does not care for
the order of its tokens, so permuting q, k and v and undoing it on the output changes nothing else.
"""

import math
import operator
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from hexad.core.errors import InputError

MAX_POINTS = 2**32
"""More would need over 100 GiB while they are ordered."""


def hilbert_order(shape: Sequence[int]) -> tuple[Int[Tensor, "n"], Int[Tensor, "n"]]:
    """Order the points of a grid along a Hilbert curve.

    Sides need not be equal or powers of two: points are visited in the order of the curve that fills the
    smallest enclosing cube of side 2^p. Sides of length 1 are left out, so a single frame of a video is
    ordered along the plane curve.

    Args:
        shape: sides of the grid, slowest axis first, as in `(height, width)` or `(frames, height, width)`.

    Returns:
        `(order, inverse)`, int64 of shape (n,) with n the number of points. `x[order]` lists row-major tokens
        along the curve and `y[inverse]` puts them back: `order[i]` is the row-major index of the i-th point
        visited.

    Raises:
        InputError: no side, a side that is no whole number or below 1, or more than 62 bits of curve.
    """
    try:
        sides = tuple(operator.index(side) for side in shape)
    except TypeError:
        raise InputError(
            f"shape must be a sequence of whole numbers, such as (30, 45), not {shape!r}"
        ) from None
    if not sides or min(sides) < 1:
        raise InputError(f"shape must hold sides of at least 1, not {sides}")
    points = math.prod(sides)
    long_sides = [side for side in sides if side > 1]
    bits = max((side - 1).bit_length() for side in sides)
    if bits * len(long_sides) > 62:
        raise InputError(
            f"a grid of {sides} needs {bits * len(long_sides)} bits of curve; "
            "62 fit into an int64, so order a smaller grid"
        )
    if points > MAX_POINTS:
        raise InputError(f"a grid of {sides} has {points} points, more than {MAX_POINTS}; order less")
    if len(long_sides) < 2:
        order = torch.arange(points)
        return order, order.clone()
    axes = torch.meshgrid(*(torch.arange(side) for side in long_sides), indexing="ij")
    order = torch.argsort(_curve_position([axis.reshape(-1) for axis in axes], bits))
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(points)
    return order, inverse


def _curve_position(axes: list[Int[Tensor, "n"]], bits: int) -> Int[Tensor, "n"]:
    """Position along the Hilbert curve of side 2^bits, for all points at once.

    Skilling, "Programming the Hilbert curve", AIP Conf. Proc. 707 (2004): undo the curve's rotations bit by
    bit from the top, then Gray-decode; what remains, read bit by bit across the axes, is the position.
    """
    x = [axis.clone() for axis in axes]
    for bit in range(bits - 1, 0, -1):
        low = (1 << bit) - 1
        for axis in range(len(x)):
            high = (x[axis] >> bit) & 1
            # Where the bit is set, mirror the first axis below it; elsewhere swap low bits with this axis.
            swap = torch.where(high == 1, 0, (x[0] ^ x[axis]) & low)
            x[0] = x[0] ^ torch.where(high == 1, low, swap)
            x[axis] = x[axis] ^ swap
    for axis in range(1, len(x)):
        x[axis] = x[axis] ^ x[axis - 1]
    flips = torch.zeros_like(x[0])
    for bit in range(bits - 1, 0, -1):
        flips ^= torch.where((x[-1] >> bit) & 1 == 1, (1 << bit) - 1, 0)
    position = torch.zeros_like(x[0])
    for bit in range(bits - 1, -1, -1):
        for axis in x:
            position = (position << 1) | (((axis ^ flips) >> bit) & 1)
    return position
