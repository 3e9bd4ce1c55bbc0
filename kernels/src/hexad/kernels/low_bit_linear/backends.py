"""Which backend runs a low-bit linear layer, and the one place that runs it."""

from typing import Any, Literal, get_args

from torch import Tensor

from hexad.core.errors import InputError
from hexad.kernels.low_bit_linear.grids import ActivationGrid

Name = Literal["reference"]
Backend = Literal["auto", "reference"]


def reason_against(backend: Name, device: str) -> str | None:
    """Why `backend` cannot run such a call on this machine, or None if it can."""
    return None


def choose(backend: Backend, device: str) -> Name:
    """The backend that will run: the one asked for, or the fastest that can.

    Raises:
        InputError: for an unknown name, or a backend asked for by name that cannot run the call.
    """
    if backend not in get_args(Backend):
        raise InputError(f"backend must be one of {', '.join(get_args(Backend))}, got {backend!r}")
    return "reference"


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
    options: dict[str, Any] = {"levels": levels, "bits": bits, "activation": activation, "block": block}
    from hexad.kernels.low_bit_linear import reference

    return reference.linear(x, packed, scale, bias, **options)
