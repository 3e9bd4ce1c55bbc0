"""The low-bit linear layer by its definition: the oracle that every other backend is tested against.

Both operands are rounded in the Hadamard domain, where the transform cancels: (x H) (W H)^T = x W^T. The sums
over levels are exact (int64). What follows is float32, each operation rounded on its own, in this order:
sum * (unit * scale), plus bias, to the dtype of x. Every backend keeps to it, so that a layer gives the same
bits wherever it runs: one bit less could make the next layer round a token otherwise.
"""

import torch
from jaxtyping import Float, Int, Int64, UInt8
from torch import Tensor

from hexad.kernels.hadamard_transform import pure
from hexad.kernels.low_bit_linear.checks import check_codes, check_finite
from hexad.kernels.low_bit_linear.grids import ActivationGrid, integer_levels, quantize_rows
from hexad.kernels.low_bit_linear.packing import unpack_codes


def weight_levels(
    packed: UInt8[Tensor, "rows bytes"], levels: Int[Tensor, " levels"], bits: int, k: int
) -> Int64[Tensor, "rows k"]:
    """The integer levels of packed weights.

    Raises:
        InputError: for a code that stands for no level.
    """
    codes = unpack_codes(packed, bits, k)
    check_codes(codes, len(levels))
    return levels.to(packed.device, torch.int64)[codes.long()]


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
    """Q(x H) W^T + bias with W[r, i] = scale[r] * levels[code[r, i]]; x H itself where activation is None."""
    transformed = pure.by_steps(x.to(torch.float32), block)
    check_finite(transformed)
    weights = weight_levels(packed, levels, bits, x.shape[-1])
    if activation is None:
        y = (transformed.double() @ weights.double().T).to(torch.float32) * scale
    else:
        codes, unit = quantize_rows(transformed, activation)
        rounded = integer_levels(activation.bits).to(x.device, torch.int64)[codes.long()]
        y = (rounded @ weights.T).to(torch.float32) * (unit[..., None] * scale)
    return (y if bias is None else y + bias.to(torch.float32)).to(x.dtype)
