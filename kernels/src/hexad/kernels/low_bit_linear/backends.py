"""Which backend runs a low-bit linear layer, and the one place that runs it."""

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from hexad.core.errors import InputError
from hexad.kernels.dispatch import constant_when_compiled
from hexad.kernels.low_bit_linear.grids import ActivationGrid

Name = Literal["reference", "torch", "native", "triton"]
Backend = Literal["auto", "reference", "torch", "native", "triton"]


def reason_against(backend: Name, device: str, k: int = 1, block: int = 1) -> str | None:
    """Why `backend` cannot run such a call on this machine, or None if it can."""
    if backend == "native":
        if device != "cpu":
            return "it is a CPU path"
        from hexad.kernels.low_bit_linear import cpu

        return cpu.reason_against(k)
    if backend == "triton":
        from hexad.kernels.hadamard_transform import backends as hadamard

        return hadamard.reason_against("triton", device, torch.float32, block)
    return None


@constant_when_compiled
def choose(backend: Backend, device: str, k: int, block: int) -> Name:
    """The backend that will run: the one asked for, or the fastest that can.

    Raises:
        InputError: for an unknown name, or a backend asked for by name that cannot run the call.
    """
    if backend not in get_args(Backend):
        raise InputError(f"backend must be one of {', '.join(get_args(Backend))}, got {backend!r}")
    if backend != "auto":
        reason = reason_against(backend, device, k, block)
        if reason is not None:
            raise InputError(f"backend {backend!r} cannot run this call: {reason}")
        return backend
    fast: Name = "triton" if device == "cuda" else "native"
    # Why there is no native code on this machine has been logged when it was looked for.
    return fast if reason_against(fast, device, k, block) is None else "torch"


def run(
    backend: str,
    x: Tensor,
    packed: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    row_sums: Tensor | None,
    *,
    levels: Tensor,
    bits: int,
    activation: ActivationGrid | None,
    block: int,
) -> Tensor:
    """Run a checked call."""
    # Each backend is imported when it first runs: triton is slow to load.
    options: dict[str, Any] = {"levels": levels, "bits": bits, "activation": activation, "block": block}
    if backend == "native":
        from hexad.kernels.low_bit_linear import cpu

        return cpu.linear(x, packed, scale, bias, row_sums, **options)
    if backend == "triton":
        from hexad.kernels.low_bit_linear import triton

        assert row_sums is not None
        return triton.linear(x, packed, scale, bias, row_sums, **options)
    if backend == "torch":
        from hexad.kernels.low_bit_linear import pure

        return pure.linear(x, packed, scale, bias, **options)
    from hexad.kernels.low_bit_linear import reference

    return reference.linear(x, packed, scale, bias, **options)
