"""The GPU path: packed weights are unpacked in the registers of a Triton program and multiplied as int8.

A program makes a tile of tokens by rows. Where 8 is a multiple of the width it loads each byte once and takes
its codes plane by plane, as the native path does; other widths load the two bytes that a code may touch.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int, Int32, UInt8
from torch import Tensor

from hexad.kernels.hadamard_transform import triton as hadamard
from hexad.kernels.low_bit_linear.checks import check_finite
from hexad.kernels.low_bit_linear.grids import ActivationGrid, integer_levels, quantize_rows

_ROWS, _BYTES = 64, 64  # of a tile of packed weights
_TOKENS = 16  # tl.dot takes no shorter side


@triton.jit
def _product_kernel(
    x_ptr,
    unit_ptr,
    token_sum_ptr,
    packed_ptr,
    scale_ptr,
    bias_ptr,
    row_sum_ptr,
    table_ptr,
    y_ptr,
    tokens,
    rows,
    k,
    row_bytes,
    step,
    least,
    factor,
    offset,
    BITS: tl.constexpr,
    PLANES: tl.constexpr,
    CROSSING: tl.constexpr,
    LEVELS: tl.constexpr,
    LOOKUP: tl.constexpr,
    ROUNDED: tl.constexpr,
    BIAS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_BYTES: tl.constexpr,
):
    row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    token = tl.program_id(1) * TILE_TOKENS + tl.arange(0, TILE_TOKENS)
    real_row, real_token = row < rows, token < tokens
    packed_row = packed_ptr + row[None, :].to(tl.int64) * row_bytes
    x_row = x_ptr + token[:, None].to(tl.int64) * k
    if ROUNDED:
        sums = tl.full([TILE_TOKENS, TILE_ROWS], 0, tl.int32)
    else:
        sums = tl.full([TILE_TOKENS, TILE_ROWS], 0.0, tl.float32)
    for first in range(0, tl.cdiv(k, PLANES), TILE_BYTES):
        unit_of_k = first + tl.arange(0, TILE_BYTES)  # a byte, or a code of a width that does not divide 8
        byte = unit_of_k * BITS // 8 if CROSSING else unit_of_k
        here = real_row[None, :] & (byte < row_bytes)[:, None]
        stream = tl.load(packed_row + byte[:, None], mask=here, other=0).to(tl.int32)
        if CROSSING:
            next_here = real_row[None, :] & (byte + 1 < row_bytes)[:, None]
            stream |= tl.load(packed_row + byte[:, None] + 1, mask=next_here, other=0).to(tl.int32) << 8
            stream = stream >> (unit_of_k * BITS % 8)[:, None]
        for plane in tl.static_range(PLANES):
            code = (stream >> (plane * BITS)) & (LEVELS - 1)
            if LOOKUP:
                code = tl.load(table_ptr + code)
            at = unit_of_k * PLANES + plane
            x = tl.load(x_row + at[None, :], mask=real_token[:, None] & (at < k)[None, :], other=0)
            if ROUNDED:
                # Codes of eight bits become signed by the offset that `least` takes back.
                weight = (code - 128).to(tl.int8) if BITS == 8 else code.to(tl.int8)
                sums = tl.dot(x, weight, sums, out_dtype=tl.int32)
            else:
                weight = (code * step + least).to(x.dtype)
                sums = tl.dot(x, weight, sums, input_precision="ieee")
    scale = tl.load(scale_ptr + row, mask=real_row, other=0)[None, :]
    if ROUNDED:
        token_sum = tl.load(token_sum_ptr + token, mask=real_token, other=0)[:, None]
        row_sum = tl.load(row_sum_ptr + row, mask=real_row, other=0)[None, :].to(tl.int64)
        total = factor * (step * sums.to(tl.int64) + least * token_sum) + offset * row_sum
        unit = tl.load(unit_ptr + token, mask=real_token, other=0)[:, None]
        y = total.to(tl.float32) * (unit * scale)
    else:
        y = sums * scale
    if BIAS:
        y += tl.load(bias_ptr + row, mask=real_row, other=0)[None, :]
    tl.store(
        y_ptr + token[:, None].to(tl.int64) * rows + row[None, :],
        y.to(y_ptr.dtype.element_ty),
        mask=real_token[:, None] & real_row[None, :],
    )


def linear(
    x: Float[Tensor, "*batch k"],
    packed: UInt8[Tensor, "rows bytes"],
    scale: Float[Tensor, " rows"],
    bias: Float[Tensor, " rows"] | None,
    row_sums: Int32[Tensor, " rows"],
    *,
    levels: Int[Tensor, " levels"],
    bits: int,
    activation: ActivationGrid | None,
    block: int,
) -> Float[Tensor, "*batch rows"]:
    """Q(x H) W^T + bias; the arguments are those of `reference.linear` and the sums of the rows' levels.

    Raises:
        InputError: for NaN or infinity in x.
    """
    k, rows = x.shape[-1], packed.shape[0]
    table, step, least = _weight_form(levels, bits)
    transformed = hadamard.transform(x.reshape(-1, k).to(torch.float32), block)
    check_finite(transformed)
    factor, offset = 1, 0
    unit = token_sums = scale  # not read where nothing is rounded
    if activation is None:
        # The interpreter multiplies bfloat16 tiles by their bit patterns (triton 3.9, issue 11584).
        interpreted = not isinstance(_product_kernel, triton.JITFunction)
        tokens = transformed if interpreted else transformed.to(x.dtype)
    else:
        codes, unit = quantize_rows(transformed, activation)
        if activation.bits == 8:  # whose levels 2 a + 1 are no int8 numbers
            factor, offset = 2, 1
        integers = (integer_levels(activation.bits) - offset) // factor
        tokens = integers.to(x.device, torch.int8)[codes.long()]
        token_sums = tokens.sum(-1, dtype=torch.int64)
        if bits == 8:
            least += 128 * step
    y = torch.empty(*x.shape[:-1], rows, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    tile_tokens = min(64, max(_TOKENS, 1 << (tokens.shape[0] - 1).bit_length()))
    crossing = 8 % bits != 0  # a code may lie in two bytes
    # ty takes every argument of a jitted function for a constexpr.
    launch: Any = _product_kernel[(-(-rows // _ROWS), -(-tokens.shape[0] // tile_tokens))]
    launch(
        tokens,
        unit,
        token_sums,
        packed.contiguous(),
        scale.contiguous(),
        scale if bias is None else bias.to(torch.float32).contiguous(),
        row_sums.contiguous(),
        table.to(x.device),
        y,
        tokens.shape[0],
        rows,
        k,
        packed.shape[1],
        step,
        least,
        factor,
        offset,
        BITS=bits,
        PLANES=1 if crossing else 8 // bits,
        CROSSING=crossing,
        LEVELS=2**bits,
        LOOKUP=not torch.equal(table, torch.arange(len(table), dtype=table.dtype)),
        ROUNDED=activation is not None,
        BIAS=bias is not None,
        TILE_TOKENS=tile_tokens,
        TILE_ROWS=_ROWS,
        TILE_BYTES=_BYTES,
        enable_fp_fusion=False,  # the bias is added to what was rounded, as on a CPU
    )
    return y


def _weight_form(levels: Int[Tensor, " levels"], bits: int) -> tuple[Int32[Tensor, " codes"], int, int]:
    """The levels as step * table[code] + least with a table of 8-bit integers, of a whole 2**bits entries."""
    values = levels.tolist()
    least = min(values)
    step = math.gcd(*(value - least for value in values)) or 1
    table = [(value - least) // step for value in values]
    # Codes without a level follow on, so that evenly spaced levels need no table.
    table += range(len(table), 2**bits)
    return torch.tensor(table, dtype=torch.int32), step, least
