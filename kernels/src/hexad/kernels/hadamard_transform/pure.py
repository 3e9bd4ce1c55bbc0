"""The block Hadamard transform in plain PyTorch, by the fast recursion or by matrix products.

The recursion has log2(block) steps of a sum and a difference. Its float32 arithmetic, operation by operation,
is that of the native path too, so those two agree to the bit. Matrix products do more arithmetic in fewer
passes over memory and measure faster at every size, so they serve where there is no native code.
"""

import math
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from hexad.kernels.hadamard_transform.reference import hadamard_signs

# One product up to this side; beyond, the cost of a row (its length times the side) outgrows that of one more
# pass over memory.
_LARGEST_FACTOR = 128


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums run in: float64 for float64, float32 for the rest."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def by_steps(x: Float[Tensor, "*batch k"], block: int) -> Float[Tensor, "*batch k"]:
    """Steps of stride 1, 2, 4, ... block / 2, then one product with 1 / sqrt(block)."""
    y = x.to(compute_dtype(x.dtype))
    stride = 1
    while stride < block:
        first, second = y.reshape(-1, 2, stride).unbind(1)
        y = torch.stack((first + second, first - second), 1)
        stride *= 2
    return (y.reshape(x.shape) * block**-0.5).to(x.dtype)


def by_matmul(x: Float[Tensor, "*batch k"], block: int) -> Float[Tensor, "*batch k"]:
    """A product with each of the smaller Hadamard matrices whose Kronecker product is that of the block."""
    y = x.to(compute_dtype(x.dtype))
    done = 1
    with torch.autocast(x.device.type, enabled=False):  # it would sum in half precision
        for side in _factors(block):
            signs = _signs(side, y.dtype, y.device)
            y = y.reshape(-1, side) @ signs if done == 1 else signs @ y.reshape(-1, side, done)
            done *= side
    return (y.reshape(x.shape) * block**-0.5).to(x.dtype)


def transform(x: Float[Tensor, "*batch k"], block: int) -> Float[Tensor, "*batch k"]:
    """x times the block-diagonal matrix, sums in float32 (float64 for float64)."""
    return by_matmul(x, block)


def _factors(block: int) -> list[int]:
    """Powers of two, as few and as equal as can be, none above the largest, whose product is the block."""
    exponent = block.bit_length() - 1
    count = max(1, math.ceil(exponent / math.log2(_LARGEST_FACTOR)))
    return [1 << (exponent + i) // count for i in range(count)]


@cache
def _signs(side: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "side side"]:
    with torch.inference_mode(False):
        return hadamard_signs(side, dtype, device)
