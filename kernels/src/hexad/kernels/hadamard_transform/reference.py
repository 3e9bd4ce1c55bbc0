"""The block Hadamard transform by its definition: the oracle that every other backend is tested against."""

import torch
from jaxtyping import Float
from torch import Tensor


def hadamard_signs(
    n: int, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu"
) -> Float[Tensor, "n n"]:
    """Sylvester's Hadamard matrix of ones and minus ones, for n a power of two."""
    matrix = torch.ones(1, 1, dtype=dtype, device=device)
    while matrix.shape[0] < n:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix


def transform(x: Float[Tensor, "*batch k"], block: int) -> Float[Tensor, "*batch k"]:
    """x times the block-diagonal matrix, in float64, rounded once to the dtype of x."""
    signs = hadamard_signs(block, device=x.device)
    blocks = x.to(torch.float64).unflatten(-1, (-1, block))
    return (blocks @ signs * block**-0.5).flatten(-2).to(x.dtype)
