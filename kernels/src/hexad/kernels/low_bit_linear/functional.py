"""The public function of the low-bit linear layer: checks at the door, then the registered operator."""

from typing import get_args

import torch
from jaxtyping import Float, Float32, Int, Int32, UInt8
from torch import Tensor

from hexad.core.errors import InputError
from hexad.kernels.low_bit_linear import checks, op, prepared
from hexad.kernels.low_bit_linear.backends import Backend, Name, choose, reason_against
from hexad.kernels.low_bit_linear.grids import ActivationGrid, grid_number


def available_backends(device: str = "cpu") -> dict[str, str | None]:
    """Every backend, with the reason why it cannot serve `device` here (None where it can)."""
    return {name: reason_against(name, device) for name in get_args(Name)}


def low_bit_linear(
    x: Float[Tensor, "*batch k"],
    packed: UInt8[Tensor, "rows bytes"],
    scale: Float32[Tensor, " rows"],
    bias: Float[Tensor, " rows"] | None = None,
    *,
    levels: Int[Tensor, " levels"],
    bits: int,
    activation: ActivationGrid | None,
    block: int = 128,
    row_sums: Int32[Tensor, " rows"] | None = None,
    backend: Backend = "auto",
) -> Float[Tensor, "*batch rows"]:
    """A linear layer on packed weights of few bits: Q(x H) W^T + bias, with W in the Hadamard domain.

    H is the block Hadamard transform (`hadamard_transform`), Q rounds each row of x H to the grid of
    `activation`, and W[r, i] = scale[r] * levels[code[r, i]]. The sums over integers are exact.

    Args:
        x: rows of float32, bfloat16 or float16.
        packed: the codes of the weights, `pack_codes`.
        scale: what each row's integer levels are multiplied with.
        bias: added to each output row, of any floating dtype.
        levels: int8 or int16, the integer in [-255, 255] of each code, see `integer_levels`.
        bits: of a code, 1 to 8.
        activation: the grid of the input; None leaves x H as it is.
        block: of the Hadamard transform of x, a power of two that divides k; 1 for none.
        row_sums: `level_sums` of the weights. Giving it saves a look through them in every call; it must
            be that of these weights, which is not checked.
        backend: "auto" takes the fastest that can run on the tensors' device; a backend asked for by name
            runs or raises.

    Returns:
        The output in the dtype of x.

    Raises:
        InputError: for shapes, dtypes or devices that do not fit, bits or levels out of range, a code that
            stands for no level (unless row_sums is given), NaN or infinity in x, inputs that require a
            gradient, a backend that cannot run.
    """
    compiling = torch.compiler.is_dynamo_compiling()
    tensors, fixed = (scale, bias, levels, row_sums), (bits, activation, block)
    if not compiling and backend in ("auto", "native"):
        known = prepared.find(x, packed, tensors, fixed)
        if known is not None:
            return known(x)
    if activation is not None and not isinstance(activation, ActivationGrid):
        raise InputError(f"activation must be an ActivationGrid or None, got {activation!r}")
    checks.check_call(x, packed, scale, bias, levels, bits, block, row_sums)
    checks.check_inference_only(x, scale, bias)
    k = x.shape[-1]
    chosen = choose(backend, x.device.type, k, block)
    alpha = 1.0 if activation is None else activation.alpha
    y = op.low_bit_linear(
        x, packed, scale, bias, levels, row_sums, bits, grid_number(activation), alpha, block, chosen
    )
    if chosen == "native" and not compiling:
        prepared.remember(k, packed, tensors, fixed)
    return y
