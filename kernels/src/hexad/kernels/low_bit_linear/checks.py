"""Everything that can be wrong with a call of the low-bit linear layer, said before any work is done."""

import math

import torch
from torch import Tensor

from hexad.core.errors import InputError
from hexad.kernels.hadamard_transform.checks import DTYPES, check_block, check_input

MAX_LEVEL = 255
"""The largest integer level: that of 8 bits."""
NONFINITE = "x or its Hadamard transform holds NaN or infinity; look for the layer that made it"

MAX_K = 2**20
"""Longer rows are mistakes, and their integer sums would pass 53 bits."""


def check_bits(bits: int) -> None:
    """Reject a width that no packed code has."""
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 8:
        raise InputError(f"bits must be a whole number from 1 to 8, got {bits!r}")


def check_matrix(name: str, x: Tensor, dtype: torch.dtype) -> None:
    """Reject what is no dense matrix of `dtype`."""
    if not isinstance(x, Tensor):
        raise InputError(f"{name} must be a tensor, got {type(x).__name__}")
    if x.is_nested or x.layout != torch.strided:
        kind = "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
        raise InputError(f"{name} is a {kind} tensor; give a dense (strided) one")
    if x.dtype != dtype or x.dim() != 2 or 0 in x.shape:
        wanted = str(dtype).removeprefix("torch.")
        raise InputError(
            f"{name} must be a {wanted} matrix that is not empty, got {x.dtype} of shape {tuple(x.shape)}"
        )


def check_codes(codes: Tensor, count: int, *, first_row: int = 0) -> None:
    """Reject codes that stand for no level; `first_row` is the number of the first row in the message."""
    if codes.is_meta:
        raise InputError("the codes are on the meta device and hold no numbers; give ones with values")
    largest = int(codes.max())
    if largest >= count:
        row, column = (int(i) for i in (codes == largest).nonzero()[0])
        raise InputError(
            f"code {largest} at row {first_row + row}, column {column} stands for no level; "
            f"codes run from 0 to {count - 1}"
        )


def check_packed(packed: Tensor, bits: int, k: int) -> None:
    """Reject rows that do not hold k codes of `bits` bits."""
    check_bits(bits)
    check_matrix("packed", packed, torch.uint8)
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= MAX_K:
        raise InputError(f"k must be a whole number from 1 to {MAX_K}, got {k!r}")
    wanted = -(-k * bits // 8)
    if packed.shape[1] != wanted:
        raise InputError(
            f"packed has rows of {packed.shape[1]} bytes, but {k} codes of {bits} bits take {wanted}; "
            "were they packed with another number of bits?"
        )


def check_levels(levels: Tensor, bits: int) -> None:
    """Reject levels that are no short vector of small integers."""
    if not isinstance(levels, Tensor) or levels.dtype not in (torch.int8, torch.int16) or levels.dim() != 1:
        got = f"{levels.dtype} of shape {tuple(levels.shape)}" if isinstance(levels, Tensor) else repr(levels)
        raise InputError(f"levels must be an int8 or int16 vector, got {got}")
    if not 1 <= len(levels) <= 2**bits:
        raise InputError(f"levels has {len(levels)} entries; codes of {bits} bits have 1 to {2**bits}")


def check_level_values(levels: Tensor) -> None:
    """Reject levels that are too large, or that no 8-bit integers can stand for."""
    if levels.is_meta:
        raise InputError("levels is on the meta device and holds no numbers; give one with values")
    values = levels.tolist()
    if max(map(abs, values)) > MAX_LEVEL:
        raise InputError(f"levels must lie in [-{MAX_LEVEL}, {MAX_LEVEL}], got {max(values, key=abs)}")
    least = min(values)
    if max(values) - least > 255 * max(1, math.gcd(*(value - least for value in values))):
        raise InputError(
            "levels lie too far apart for 8 bits: divide their differences by what divides all of them, "
            "and none may exceed 255"
        )


def check_call(
    x: Tensor,
    packed: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    levels: Tensor,
    bits: int,
    block: int,
    row_sums: Tensor | None,
) -> None:
    """Reject shapes, dtypes and devices that do not belong together."""
    check_input(x)
    if x.dtype == torch.float64:
        raise InputError("x has dtype torch.float64; give float32, bfloat16 or float16")
    check_packed(packed, bits, x.shape[-1])
    check_block(block, x.shape[-1])
    check_levels(levels, bits)
    rows = packed.shape[0]
    _check_vector("scale", scale, rows, (torch.float32,))
    if bias is not None:
        _check_vector("bias", bias, rows, DTYPES)
    if row_sums is not None:
        _check_vector("row_sums", row_sums, rows, (torch.int32,))
    device = x.device
    for name, tensor in (("packed", packed), ("scale", scale), ("bias", bias), ("row_sums", row_sums)):
        if tensor is not None and tensor.device != device:
            raise InputError(f"x is on {device}, {name} on {tensor.device}; move one of them")


def _check_vector(name: str, x: Tensor, rows: int, dtypes: tuple[torch.dtype, ...]) -> None:
    if not isinstance(x, Tensor) or x.layout != torch.strided or x.shape != (rows,):
        got = f"{x.layout} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"{name} must hold one number for each of the {rows} rows of packed, got {got}")
    if x.dtype not in dtypes:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise InputError(f"{name} must be {wanted}, got {x.dtype}")


def check_inference_only(*tensors: Tensor | None) -> None:
    """Refuse inputs that ask for a gradient, which no backend computes."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        raise InputError(
            "the packed linear layer is for inference and computes no gradient: call it under "
            "torch.no_grad() or torch.inference_mode(), or detach its inputs"
        )


def check_finite(x: Tensor) -> None:
    """Reject NaN and infinity, in x itself or after its transform."""
    if not bool(torch.isfinite(x).all()):
        raise InputError(NONFINITE)
