"""Which backend runs a block Hadamard transform, and the one place that runs it."""

from typing import Literal, get_args

import torch
from torch import Tensor

from hexad.core.errors import InputError
from hexad.kernels.dispatch import constant_when_compiled, reason_against_triton

Name = Literal["reference", "torch", "native", "triton"]
Backend = Literal["auto", "reference", "torch", "native", "triton"]
# A block passes through the registers of one Triton program.
_LARGEST_TRITON_BLOCK = 2**14


def reason_against(backend: Name, device: str, dtype: torch.dtype, block: int = 128) -> str | None:
    """Why `backend` cannot transform such a tensor on this machine, or None if it can."""
    if backend == "native":
        if device != "cpu":
            return "it is a CPU path"
        from hexad.kernels.hadamard_transform import cpu

        return cpu.reason_against(dtype)
    if backend == "triton":
        reason = reason_against_triton(device)
        if reason is not None:
            return reason
        if dtype == torch.float64:
            return "it does not compute in float64"
        if block > _LARGEST_TRITON_BLOCK:
            return f"it takes blocks of at most {_LARGEST_TRITON_BLOCK}, got {block}"
    return None


@constant_when_compiled
def choose(backend: Backend, device: str, dtype: torch.dtype, block: int) -> Name:
    """The backend that will run: the one asked for, or the fastest that can.

    Raises:
        InputError: for an unknown name, or a backend asked for by name that cannot run the call.
    """
    if backend not in get_args(Backend):
        raise InputError(f"backend must be one of {', '.join(get_args(Backend))}, got {backend!r}")
    if backend != "auto":
        reason = reason_against(backend, device, dtype, block)
        if reason is not None:
            raise InputError(f"backend {backend!r} cannot run this call: {reason}")
        return backend
    fast: Name = "triton" if device == "cuda" else "native"
    # Why there is no native code on this machine has been logged when it was looked for.
    return fast if reason_against(fast, device, dtype, block) is None else "torch"


def run(backend: str, x: Tensor, block: int) -> Tensor:
    """Run a checked call."""
    # Each backend is imported when it first runs: triton is slow to load.
    if backend == "native":
        from hexad.kernels.hadamard_transform import cpu

        return cpu.transform(x, block)
    if backend == "triton":
        from hexad.kernels.hadamard_transform import triton

        return triton.transform(x, block)
    if backend == "torch":
        from hexad.kernels.hadamard_transform import pure

        return pure.transform(x, block)
    from hexad.kernels.hadamard_transform import reference

    return reference.transform(x, block)
