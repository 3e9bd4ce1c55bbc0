"""The block Hadamard transform, and which block serves a row of k entries."""

from jaxtyping import Float
from torch import Tensor

from hexad.core.errors import InputError
from hexad.kernels.hadamard_transform import hadamard_transform


def fwht(x: Float[Tensor, "*rows k"], block: int = 128) -> Float[Tensor, "*rows k"]:
    """x times the block-diagonal Hadamard matrix over sqrt(block): orthogonal, symmetric, its own inverse.

    Args:
        x: in float32, bfloat16, float16 or float64; sums run in float32 (float64 for float64).
        block: a power of two that divides k.

    Raises:
        InputError: see `hexad.kernels.hadamard_transform`, of which this is the name in the paper's code.
    """
    return hadamard_transform(x, block)


def is_power_of_two(n: int) -> bool:
    """Whether `n` is 1, 2, 4, 8, ..."""
    return n > 0 and n & (n - 1) == 0


def block_for(k: int, largest: int = 128, smallest: int = 2) -> int:
    """The largest power of two that divides k, at most `largest`.

    The authors' code takes 128 alone. Rows that 128 does not divide get a smaller block, whose mixtures are
    less Gaussian.

    Raises:
        InputError: it is below `smallest`, as for odd k, where nothing would be mixed.
    """
    block = min(k & -k, largest)
    if block < min(smallest, largest):
        raise InputError(
            f"rows of {k} entries leave a Hadamard block of {block}, and the smallest allowed is {smallest}; "
            f"pad the rows to a multiple of {smallest}, or leave the layer out (skip, filter_fn)"
        )
    return block
