"""Which backend runs a block Hadamard transform, and the one place that runs it."""

from typing import Literal, get_args

import torch
from torch import Tensor

from hexad.core.errors import InputError

Name = Literal["reference", "torch"]
Backend = Literal["auto", "reference", "torch"]


def reason_against(backend: Name, device: str, dtype: torch.dtype) -> str | None:
    """Why `backend` cannot transform such a tensor on this machine, or None if it can."""
    return None


def choose(backend: Backend, device: str, dtype: torch.dtype) -> Name:
    """The backend that will run: the one asked for, or the fastest that can.

    Raises:
        InputError: for an unknown name, or a backend asked for by name that cannot run the call.
    """
    if backend not in get_args(Backend):
        raise InputError(f"backend must be one of {', '.join(get_args(Backend))}, got {backend!r}")
    return "torch" if backend == "auto" else backend


def run(backend: str, x: Tensor, block: int) -> Tensor:
    """Run a checked call."""
    if backend == "torch":
        from hexad.kernels.hadamard_transform import pure

        return pure.transform(x, block)
    from hexad.kernels.hadamard_transform import reference

    return reference.transform(x, block)
