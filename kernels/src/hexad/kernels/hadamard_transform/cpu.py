"""The native CPU path of the block Hadamard transform: a block passes through the registers once.

It sums in float32 in the order of `pure.by_steps` and agrees with it to the bit.
"""

import ctypes
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from hexad.core.errors import HexadError
from hexad.kernels.native import NativeLibrary

_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class _Call(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "y")),
        *((name, ctypes.c_int64) for name in ("rows", "k", "block", "stride")),
        *((name, ctypes.c_int32) for name in ("dtype", "threads")),
    )


FUNCTIONS = {
    "hexad_vector_width": (ctypes.c_int32, ()),
    "hexad_hadamard_transform": (None, (ctypes.POINTER(_Call),)),
}
SOURCES = Path(__file__).parent / "native"
library = NativeLibrary("hadamard_transform", SOURCES, FUNCTIONS)


def reason_against(dtype: torch.dtype = torch.float32) -> str | None:
    """Why native code cannot serve inputs of `dtype` on this machine, or None if it can."""
    if dtype not in _DTYPES:
        return f"it does not compute in {str(dtype).removeprefix('torch.')}"
    return None if library.load() is not None else library.status()


def instructions() -> str:
    """Which units of the processor the loaded library uses, in words."""
    loaded = library.load()
    return "none" if loaded is None else f"{32 * loaded.hexad_vector_width()}-bit vectors"


def transform(x: Float[Tensor, "*batch k"], block: int) -> Float[Tensor, "*batch k"]:
    """x times the block-diagonal matrix, sums in float32."""
    loaded = library.load()
    if loaded is None:
        raise HexadError(f"there is no native Hadamard transform here: {library.status()}")
    k = x.shape[-1]
    y = torch.empty(x.shape, dtype=x.dtype)
    if x.numel() == 0:
        return y
    rows = x.reshape(-1, k)  # a view where strides allow one
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    call = _Call(
        x=rows.data_ptr(),
        y=y.data_ptr(),
        rows=rows.shape[0],
        k=k,
        block=block,
        stride=rows.stride(0),
        dtype=_DTYPES[x.dtype],
        threads=torch.get_num_threads(),
    )
    loaded.hexad_hadamard_transform(ctypes.byref(call))
    return y
