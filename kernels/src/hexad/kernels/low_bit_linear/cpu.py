"""The native CPU path of the low-bit linear layer: torch tensors in, C++ of the folder `native` behind.

====================  ====================================================================================
tokens                what runs
====================  ====================================================================================
1 to 4, rounded       packed codes in registers, int8 dot products (AVX-512 VNNI); elsewhere each row goes
                      through cache
more, rounded         panels of rows unpacked into cache, times blocks of 16 tokens: matrix unit (AMX),
                      int8 dot products, or 16-bit products of pairs
1 to 32, not rounded  levels as float32 times float32 tokens
more, not rounded     the levels written out in the dtype of x, and torch's own product
====================  ====================================================================================

Integer sums are exact. The rounding of tokens is `grids.quantize_rows` with the arithmetic of
`hadamard_transform.pure.by_steps`, operation by operation.
"""

import ctypes
from pathlib import Path

import torch
from jaxtyping import Float, Int, Int32, UInt8
from torch import Tensor

from hexad.core.errors import HexadError, InputError
from hexad.kernels.hadamard_transform import cpu as hadamard
from hexad.kernels.low_bit_linear import checks
from hexad.kernels.low_bit_linear.grids import ActivationGrid, grid_number
from hexad.kernels.low_bit_linear.packing import unpack_codes
from hexad.kernels.native import NativeLibrary

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
# Up to here a pass over the packed weights for every four tokens takes less time than to write them out.
_FEW_FLOATS = 32
# Longer rows could overflow 32-bit sums.
_MAX_K = 2**16


class LinearCall(ctypes.Structure):
    """Mirrors `hexad::LinearCall` of native/call.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "y", "packed", "scale", "bias", "row_sums", "levels")),
        *((name, ctypes.c_int64) for name in ("tokens", "k", "rows", "x_stride", "block", "level_count")),
        *((name, ctypes.c_int32) for name in ("bits", "grid", "dtype", "threads", "use_amx")),
        ("alpha", ctypes.c_float),
        ("nonfinite", ctypes.c_int32),
    )


_CODES = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)
FUNCTIONS = {
    "hexad_linear_features": (ctypes.c_int32, ()),
    "hexad_low_bit_linear": (ctypes.c_int32, (ctypes.POINTER(LinearCall),)),
    "hexad_write_levels": (ctypes.c_int32, (*_CODES, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)),
    "hexad_level_sums": (ctypes.c_int64, (*_CODES, ctypes.c_int32, ctypes.c_void_p)),
}
SOURCES = Path(__file__).parent / "native"
library = NativeLibrary("low_bit_linear", SOURCES, FUNCTIONS)


def reason_against(k: int = 1) -> str | None:
    """Why native code cannot serve rows of k codes on this machine, or None if it can."""
    if k > _MAX_K:
        return f"its 32-bit sums take rows of at most {_MAX_K} codes, got {k}"
    return None if library.load() is not None else library.status()


def instructions() -> str:
    """Which units of the processor the loaded library uses, in words."""
    loaded = library.load()
    if loaded is None:
        return "none"
    features = loaded.hexad_linear_features()
    units = [name for bit, name in ((1, "AMX"), (2, "int8 dot products")) if features & bit]
    return ", ".join((*units, f"{(features >> 8) * 32}-bit vectors"))


def linear(
    x: Float[Tensor, "*batch k"],
    packed: UInt8[Tensor, "rows bytes"],
    scale: Float[Tensor, " rows"],
    bias: Float[Tensor, " rows"] | None,
    row_sums: Int32[Tensor, " rows"] | None,
    *,
    levels: Int[Tensor, " levels"],
    bits: int,
    activation: ActivationGrid | None,
    block: int,
    matrix_unit: bool = True,
) -> Float[Tensor, "*batch rows"]:
    """Q(x H) W^T + bias; the arguments are those of `reference.linear` and the sums of the rows' levels.

    `matrix_unit=False` keeps the products on the vector unit.

    Raises:
        InputError: for NaN or infinity in x, a code that stands for no level (where row_sums is None).
    """
    k = x.shape[-1]
    levels = _contiguous(levels, torch.int16)
    if row_sums is None:
        checks.check_level_values(levels)
        row_sums = level_sums(packed, levels, bits=bits, k=k)
    tokens = x.reshape(-1, k)  # a view where strides allow one
    if activation is None and tokens.shape[0] > _FEW_FLOATS:
        return _written_out(x, packed, scale, bias, levels=levels, bits=bits, block=block)
    if tokens.stride(1) != 1:
        tokens = tokens.contiguous()
    # Named, so that copies live until the call is over.
    packed, scale, row_sums = packed.contiguous(), scale.contiguous(), row_sums.contiguous()
    bias = None if bias is None else _contiguous(bias, torch.float32)
    call = describe(
        packed, scale, bias, row_sums, levels=levels, bits=bits, activation=activation, block=block, k=k
    )
    call.use_amx = matrix_unit
    y = run(call, tokens, tokens.shape[0], tokens.stride(0), levels)
    return y.view(*x.shape[:-1], packed.shape[0])


def describe(
    packed: UInt8[Tensor, "rows bytes"],
    scale: Float[Tensor, " rows"],
    bias: Float[Tensor, " rows"] | None,
    row_sums: Int32[Tensor, " rows"],
    *,
    levels: Int[Tensor, " levels"],
    bits: int,
    activation: ActivationGrid | None,
    block: int,
    k: int,
) -> LinearCall:
    """A call without its tokens. The tensors are contiguous, levels int16 and bias float32."""
    return LinearCall(
        packed=packed.data_ptr(),
        scale=scale.data_ptr(),
        bias=None if bias is None else bias.data_ptr(),
        row_sums=row_sums.data_ptr(),
        levels=levels.data_ptr(),
        k=k,
        rows=packed.shape[0],
        block=block,
        level_count=levels.shape[0],
        bits=bits,
        grid=grid_number(activation),
        use_amx=True,
        alpha=0.0 if activation is None else activation.alpha,
    )


def run(
    call: LinearCall,
    x: Float[Tensor, "*batch k"],
    tokens: int,
    stride: int,
    levels: Int[Tensor, " levels"],
) -> Float[Tensor, "*batch rows"]:
    """Run a described call on rows that lie `stride` numbers apart.

    Raises:
        InputError: for NaN or infinity in x, levels that no 8-bit integers can stand for.
    """
    y = x.new_empty(*x.shape[:-1], call.rows)
    if tokens == 0:
        return y
    call.x, call.y = x.data_ptr(), y.data_ptr()
    call.tokens, call.x_stride = tokens, stride
    call.dtype, call.threads = DTYPES[x.dtype], torch.get_num_threads()
    status = _load().hexad_low_bit_linear(ctypes.byref(call))
    if status == 1:
        raise MemoryError(f"a linear layer over {tokens} tokens needs more memory than there is")
    if status == 2:
        checks.check_level_values(levels)
    if call.nonfinite:
        raise InputError(checks.NONFINITE)
    return y


def level_sums(
    packed: UInt8[Tensor, "rows bytes"], levels: Int[Tensor, " levels"], *, bits: int, k: int
) -> Int32[Tensor, " rows"]:
    """The sum of the levels of each row.

    Raises:
        InputError: for a code that stands for no level.
    """
    packed, levels = packed.contiguous(), _contiguous(levels, torch.int16)
    rows, count = packed.shape[0], levels.shape[0]
    sums = torch.empty(rows, dtype=torch.int32)
    wrong = _load().hexad_level_sums(
        packed.data_ptr(),
        levels.data_ptr(),
        count,
        rows,
        k,
        bits,
        torch.get_num_threads(),
        sums.data_ptr(),
    )
    if wrong >= 0:
        checks.check_codes(unpack_codes(packed[wrong : wrong + 1], bits, k), count, first_row=wrong)
    return sums


def _written_out(
    x: Float[Tensor, "*batch k"],
    packed: UInt8[Tensor, "rows bytes"],
    scale: Float[Tensor, " rows"],
    bias: Float[Tensor, " rows"] | None,
    *,
    levels: Int[Tensor, " levels"],
    bits: int,
    block: int,
) -> Float[Tensor, "*batch rows"]:
    """Tokens that stay floats, times the levels as floats, which are exact."""
    packed = packed.contiguous()
    k, rows = x.shape[-1], packed.shape[0]
    # Sums of whole levels could pass the range of float16.
    dtype = torch.float32 if x.dtype == torch.float16 else x.dtype
    weights = torch.empty(rows, k, dtype=dtype)
    status = _load().hexad_write_levels(
        packed.data_ptr(),
        levels.data_ptr(),
        levels.shape[0],
        rows,
        k,
        bits,
        DTYPES[dtype],
        torch.get_num_threads(),
        weights.data_ptr(),
    )
    if status == 2:
        checks.check_level_values(levels)
    transformed = hadamard.transform(x.to(dtype), block)
    checks.check_finite(transformed)
    with torch.autocast("cpu", enabled=False):
        y = (transformed @ weights.T).to(torch.float32) * scale
    return (y if bias is None else y + bias.to(torch.float32)).to(x.dtype)


def _contiguous(x: Tensor, dtype: torch.dtype) -> Tensor:
    # Tensor.to takes half a microsecond to find that there is nothing to do.
    return (x if x.dtype == dtype else x.to(dtype)).contiguous()


def _load() -> ctypes.CDLL:
    loaded = library.load()
    if loaded is None:
        raise HexadError(f"there is no native low-bit linear layer here: {library.status()}")
    return loaded
