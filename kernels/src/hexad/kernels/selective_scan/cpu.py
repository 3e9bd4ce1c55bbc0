"""The native CPU path of the selective scan: torch tensors in, C++ of the folder `native` behind.

A vector holds neighbouring channels, so no sum runs across its lanes but those of B's and C's gradients, once
a chunk. Gradients do not depend on the number of threads.
"""

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from hexad.core.errors import HexadError, InputError
from hexad.kernels.native import NativeLibrary
from hexad.kernels.selective_scan.checks import holds_nan
from hexad.kernels.selective_scan.inputs import Inputs, Scanned, empty_gradients, empty_outputs

_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
# In the order of the bits of `hexad::Holder`.
_HOLDERS = ("u", "delta", "z", "B", "C", "D", "delta_bias", "initial_state")


class _Strided(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("stride", ctypes.c_int64 * 3), ("dtype", ctypes.c_int64))


class _Call(ctypes.Structure):
    """Mirrors `hexad::ScanCall` of native/call.h, field by field."""

    _fields_ = (
        *((name, _Strided) for name in ("u", "delta", "z", "gradient", "b", "c")),
        *((name, ctypes.c_void_p) for name in ("a", "skip", "bias", "initial", "last_gradient")),
        *((name, ctypes.c_void_p) for name in ("checkpoints", "y", "last")),
        *((name, ctypes.c_void_p) for name in ("grad_u", "grad_delta", "grad_z")),
        *((name, ctypes.c_void_p) for name in ("grad_a", "grad_b", "grad_c")),
        *((name, ctypes.c_void_p) for name in ("grad_skip", "grad_bias", "grad_initial")),
        *((name, ctypes.c_int64) for name in ("batch", "channels", "steps", "states", "groups")),
        *((name, ctypes.c_int32) for name in ("softplus", "constant_b", "constant_c", "threads", "nan")),
    )


FUNCTIONS = {
    "hexad_vector_width": (ctypes.c_int32, ()),
    "hexad_selective_scan": (ctypes.c_int32, (ctypes.POINTER(_Call),)),
    "hexad_selective_scan_backward": (ctypes.c_int32, (ctypes.POINTER(_Call),)),
}
SOURCES = Path(__file__).parent / "native"
library = NativeLibrary("selective_scan", SOURCES, FUNCTIONS)


def reason_against(dtype: torch.dtype = torch.float32) -> str | None:
    """Why native code cannot serve calls computed in `dtype` on this machine, or None if it can."""
    if dtype != torch.float32:
        return f"it does not compute in {str(dtype).removeprefix('torch.')}"
    return None if library.load() is not None else library.status()


def instructions() -> str:
    """Which units of the processor the loaded library uses, in words."""
    loaded = library.load()
    return "none" if loaded is None else f"{32 * loaded.hexad_vector_width()}-bit vectors"


def forward(inputs: Inputs, softplus: bool, keep: bool) -> Scanned:
    """Outputs, the last state and the checkpoints.

    Raises:
        InputError: for NaN in any tensor but A.
    """
    made = empty_outputs(inputs, keep)
    if made.y.numel() == 0:
        return made
    call, alive = _describe(inputs, softplus)
    call.y, call.last = made.y.data_ptr(), made.last_state.data_ptr()
    call.checkpoints = made.checkpoints.data_ptr() if keep else None
    if _load().hexad_selective_scan(ctypes.byref(call)):
        raise MemoryError(f"a selective scan of {tuple(inputs.u.shape)} needs more memory than there is")
    del alive
    for bit, name in enumerate(_HOLDERS):
        if call.nan & 1 << bit:
            raise InputError(holds_nan(name))
    return made


def backward(
    grad_y: Tensor, grad_last: Tensor | None, inputs: Inputs, checkpoints: Tensor, softplus: bool
) -> list[Tensor]:
    """The gradient of each input."""
    grads = Inputs._make(empty_gradients(inputs))
    if inputs.u.numel() == 0:
        return [x.zero_() for x in grads if x is not None]
    call, alive = _describe(inputs, softplus)
    outer = _side_by_side(grad_y)
    call.gradient = _strided(outer)
    last = None if grad_last is None else _float32(grad_last)
    call.last_gradient = _pointer(last)
    checkpoints = checkpoints.contiguous()
    call.checkpoints = checkpoints.data_ptr()
    sums = {
        name: torch.empty(x.shape)
        for name, x in zip(Inputs._fields, grads, strict=True)
        if x is not None and name not in ("u", "delta", "z")
    }
    call.grad_u, call.grad_delta = grads.u.data_ptr(), grads.delta.data_ptr()
    call.grad_z = _pointer(grads.z)
    call.grad_a, call.grad_b, call.grad_c = (sums[name].data_ptr() for name in "ABC")
    call.grad_skip = _pointer(sums["D"])
    call.grad_bias = _pointer(sums["delta_bias"])
    call.grad_initial = _pointer(sums["initial_state"])
    if _load().hexad_selective_scan_backward(ctypes.byref(call)):
        raise MemoryError(f"a selective scan of {tuple(inputs.u.shape)} needs more memory than there is")
    del alive
    return [
        grad if name not in sums else sums[name].to(grad.dtype)
        for name, grad in zip(Inputs._fields, grads, strict=True)
        if grad is not None
    ]


def _describe(inputs: Inputs, softplus: bool) -> tuple[_Call, list[Tensor | None]]:
    """What both passes take, and the tensors that must live until they are over."""
    u, delta, z = (None if x is None else _side_by_side(x) for x in (inputs.u, inputs.delta, inputs.z))
    assert u is not None
    small = (inputs.A, inputs.D, inputs.delta_bias, inputs.initial_state)
    A, D, bias, initial = (None if x is None else _float32(x) for x in small)
    B, C = (_float32(x) if x.dim() == 2 else _side_by_side(x) for x in (inputs.B, inputs.C))
    call = _Call(
        u=_strided(u),
        delta=_strided(delta),
        z=_strided(z),
        b=_strided(B.unsqueeze(1) if B.dim() == 3 else B),
        c=_strided(C.unsqueeze(1) if C.dim() == 3 else C),
        a=_pointer(A),
        skip=_pointer(D),
        bias=_pointer(bias),
        initial=_pointer(initial),
        batch=u.shape[0],
        channels=u.shape[1],
        steps=u.shape[2],
        states=inputs.A.shape[1],
        groups=inputs.groups,
        softplus=softplus,
        constant_b=B.dim() == 2,
        constant_c=C.dim() == 2,
        threads=torch.get_num_threads(),
    )
    return call, [u, delta, z, A, D, bias, initial, B, C]


def _side_by_side(x: Tensor) -> Tensor:
    """Entries of the last dimension without gaps; other strides stay."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _float32(x: Tensor) -> Tensor:
    return x.to(torch.float32).contiguous()


def _strided(x: Tensor | None) -> _Strided:
    if x is None:
        return _Strided()
    strides = (ctypes.c_int64 * 3)(*x.stride()[:-1])
    return _Strided(data=x.data_ptr(), stride=strides, dtype=_DTYPES[x.dtype])


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None or x.numel() == 0 else x.data_ptr()


def _load() -> ctypes.CDLL:
    loaded = library.load()
    if loaded is None:
        raise HexadError(f"there is no native selective scan here: {library.status()}")
    return loaded
