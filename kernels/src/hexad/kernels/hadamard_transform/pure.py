"""The block Hadamard transform in plain PyTorch, by the fast recursion or by a matrix product.

The recursion halves its way through a block: log2(block) steps of one sum and one difference. Its float32
arithmetic, step by step, is that of the native path too, so the two agree to the bit.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from hexad.kernels.hadamard_transform.reference import hadamard_matrix


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums run in: float64 for float64, float32 for the rest."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def by_steps(x: Float[Tensor, "*batch k"], block: int) -> Float[Tensor, "*batch k"]:
    """Steps of stride 1, 2, 4, ... block / 2, then one product with 1 / sqrt(block)."""
    y = x.to(compute_dtype(x.dtype))
    stride = 1
    while stride < block:
        pairs = y.reshape(*x.shape[:-1], x.shape[-1] // (2 * stride), 2, stride)
        first, second = pairs.unbind(-2)
        y = torch.stack((first + second, first - second), -2)
        stride *= 2
    return (y.reshape(x.shape) * block**-0.5).to(x.dtype)


def by_matmul(x: Float[Tensor, "*batch k"], block: int) -> Float[Tensor, "*batch k"]:
    """One product with the matrix of a block."""
    matrix = hadamard_matrix(block, compute_dtype(x.dtype), x.device)
    return (x.to(matrix.dtype).unflatten(-1, (-1, block)) @ matrix).flatten(-2).to(x.dtype)


def transform(x: Float[Tensor, "*batch k"], block: int) -> Float[Tensor, "*batch k"]:
    """x times the block-diagonal matrix, sums in float32 (float64 for float64)."""
    return by_steps(x, block)
