"""The low-bit linear layer in plain PyTorch: levels as floats whose products and sums are exact.

Integers below 2^24 are float32 numbers, and integers below 2^53 are float64 numbers, so a product of matrices
of levels in floating point has no rounding as long as no sum can pass that bound.
"""

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from hexad.kernels.hadamard_transform import pure as hadamard
from hexad.kernels.low_bit_linear.checks import check_finite
from hexad.kernels.low_bit_linear.grids import ActivationGrid, integer_levels, quantize_rows
from hexad.kernels.low_bit_linear.packing import unpack_codes

# Weights that are written out together, so that a layer does not need its float32 size again.
_CODES_AT_ONCE = 2**22


def linear(
    x: Float[Tensor, "*batch k"],
    packed: UInt8[Tensor, "rows bytes"],
    scale: Float[Tensor, " rows"],
    bias: Float[Tensor, " rows"] | None,
    *,
    levels: Int[Tensor, " levels"],
    bits: int,
    activation: ActivationGrid | None,
    block: int,
) -> Float[Tensor, "*batch rows"]:
    """Q(x H) W^T + bias; the arguments are those of `reference.linear`.

    Raises:
        InputError: for NaN or infinity in x.
    """
    k = x.shape[-1]
    tokens = hadamard.transform(x.to(torch.float32), block)
    check_finite(tokens)
    unit, dtype = None, torch.float32
    if activation is not None:
        codes, unit = quantize_rows(tokens, activation)
        grid = integer_levels(activation.bits).to(x.device)
        tokens = grid[codes.long()]
        # On a GPU float32 products may run in TF32, which rounds.
        if x.device.type != "cpu" or k * _largest(grid) * _largest(levels) > 2**24:
            dtype = torch.float64
        tokens = tokens.to(dtype)
    values = levels.to(x.device, dtype)
    parts = []
    with torch.autocast(x.device.type, enabled=False):  # it would round to half precision
        for rows in packed.split(max(1, _CODES_AT_ONCE // k)):
            parts.append(tokens @ values[unpack_codes(rows, bits, k).long()].T)
    y = torch.cat(parts, -1).to(torch.float32) * (scale if unit is None else unit[..., None] * scale)
    return (y if bias is None else y + bias.to(torch.float32)).to(x.dtype)


def _largest(levels: Int[Tensor, " levels"]) -> int:
    return max(map(abs, levels.tolist()))
