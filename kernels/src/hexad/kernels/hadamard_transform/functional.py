"""The public function of the block Hadamard transform: checks at the door, then the registered operator."""

from typing import get_args

import torch
from jaxtyping import Float
from torch import Tensor

from hexad.kernels.hadamard_transform import checks, op
from hexad.kernels.hadamard_transform.backends import Backend, Name, choose, reason_against


def available_backends(device: str = "cpu", dtype: torch.dtype = torch.float32) -> dict[str, str | None]:
    """Every backend, with the reason why it cannot serve `device` and `dtype` here (None where it can)."""
    return {name: reason_against(name, device, dtype) for name in get_args(Name)}


def hadamard_transform(
    x: Float[Tensor, "*batch k"], block: int = 128, *, backend: Backend = "auto"
) -> Float[Tensor, "*batch k"]:
    """Multiply each run of `block` entries of the last dimension by the Hadamard matrix over sqrt(block).

    The matrix is Sylvester's, symmetric and orthogonal: the transform is its own inverse and its own
    derivative, and keeps the root mean square of each block. NaN and infinity spread over their block.

    Args:
        x: any batch of rows of any strides, in float32, bfloat16, float16 or float64.
        block: a power of two that divides k; 1 leaves x as it is.
        backend: "auto" takes the fastest that can run on the tensor's device; a backend asked for by name
            runs or raises.

    Returns:
        The transformed rows in the dtype of x. Sums run in float32 (float64 for float64).

    Raises:
        InputError: for a block that is no power of two or does not divide k, a tensor that is not dense and
            floating, a backend that cannot run.
    """
    checks.check_input(x)
    checks.check_block(block, x.shape[-1])
    return op.hadamard_transform(x, block, choose(backend, x.device.type, x.dtype, block))
