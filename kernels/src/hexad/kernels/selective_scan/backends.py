"""Which backend runs a selective scan, and the one place that runs it."""

from importlib.util import find_spec
from typing import Literal, get_args

import torch
from torch import Tensor

from hexad.core.errors import InputError
from hexad.kernels.dispatch import constant_when_compiled, reason_against_triton
from hexad.kernels.selective_scan.inputs import Inputs, Scanned

Name = Literal["reference", "torch", "native", "triton", "mamba_ssm"]
Backend = Literal["auto", "reference", "torch", "native", "triton", "mamba_ssm"]
# The states of some channels stay in the registers of one Triton program.
_MOST_TRITON_STATES = 256


def reason_against(
    backend: Name,
    device: str,
    dtype: torch.dtype,
    states: int = 16,
    *,
    chained: bool = False,
) -> str | None:
    """Why `backend` cannot run such a scan on this machine, or None if it can.

    Args:
        backend: in question.
        device: type of the tensors' device.
        dtype: what is computed in, float32 or float64.
        states: of a channel.
        chained: there is an initial state, or a gradient through the last one.
    """
    if backend == "native":
        if device != "cpu":
            return "it is a CPU path"
        from hexad.kernels.selective_scan import cpu

        return cpu.reason_against(dtype)
    if backend == "triton":
        reason = reason_against_triton(device)
        if reason is not None:
            return reason
        if dtype == torch.float64:
            return "it does not compute in float64"
        if states > _MOST_TRITON_STATES:
            return f"it takes at most {_MOST_TRITON_STATES} states, got {states}"
    if backend == "mamba_ssm":
        if find_spec("mamba_ssm") is None:
            return "mamba_ssm is not installed"
        if device != "cuda":
            return "it needs CUDA tensors"
        if dtype == torch.float64:
            return "it does not compute in float64"
        if states > _MOST_TRITON_STATES:
            return f"it takes at most {_MOST_TRITON_STATES} states, got {states}"
        if chained:
            return "it takes no initial state and has no gradient through the last one"
    return None


@constant_when_compiled
def choose(backend: Backend, device: str, dtype: torch.dtype, states: int, chained: bool) -> Name:
    """The backend that will run: the one asked for, or the fastest that can.

    Raises:
        InputError: for an unknown name, or a backend asked for by name that cannot run the call.
    """
    if backend not in get_args(Backend):
        raise InputError(f"backend must be one of {', '.join(get_args(Backend))}, got {backend!r}")
    if backend != "auto":
        reason = reason_against(backend, device, dtype, states, chained=chained)
        if reason is not None:
            raise InputError(f"backend {backend!r} cannot run this call: {reason}")
        return backend
    fast: Name = "triton" if device == "cuda" else "native"
    # Why there is no native code on this machine has been logged when it was looked for.
    return fast if reason_against(fast, device, dtype, states) is None else "torch"


def forward(backend: str, inputs: Inputs, softplus: bool, keep: bool) -> Scanned:
    """Run a checked call."""
    # Each backend is imported when it first runs: triton is slow to load.
    if backend == "native":
        from hexad.kernels.selective_scan import cpu

        return cpu.forward(inputs, softplus, keep)
    if backend == "triton":
        from hexad.kernels.selective_scan import triton

        return triton.forward(inputs, softplus, keep)
    from hexad.kernels.selective_scan import pure

    return pure.forward(inputs, softplus, keep)


def backward(
    backend: str,
    grad_y: Tensor,
    grad_last: Tensor | None,
    inputs: Inputs,
    checkpoints: Tensor,
    softplus: bool,
) -> list[Tensor]:
    """The gradient of each input of a checked call."""
    if backend == "native":
        from hexad.kernels.selective_scan import cpu

        return cpu.backward(grad_y, grad_last, inputs, checkpoints, softplus)
    if backend == "triton":
        from hexad.kernels.selective_scan import triton

        return triton.backward(grad_y, grad_last, inputs, checkpoints, softplus)
    from hexad.kernels.selective_scan import pure

    return pure.backward(grad_y, grad_last, inputs, checkpoints, softplus)
