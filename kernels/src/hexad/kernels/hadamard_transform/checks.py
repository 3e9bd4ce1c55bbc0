"""Everything that can be wrong with a call of the block Hadamard transform, said before any work is done."""

import torch
from torch import Tensor

from hexad.core.errors import InputError

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

MAX_BLOCK = 2**15
"""Larger blocks are mistakes: the matrix of one would fill gigabytes."""


def check_block(block: int, k: int) -> None:
    """Reject a block that is no power of two or does not divide the last dimension."""
    if isinstance(block, bool) or not isinstance(block, int) or block < 1 or block & (block - 1):
        raise InputError(f"block must be a power of two, got {block!r}")
    if block > MAX_BLOCK:
        raise InputError(f"block is {block}; the largest is {MAX_BLOCK}")
    if k % block:
        raise InputError(
            f"block {block} does not divide the {k} entries of the last dimension; "
            f"the largest that does is {k & -k}"
        )


def check_input(x: Tensor, name: str = "x") -> None:
    """Reject what is no dense tensor of a floating dtype with a last dimension."""
    if not isinstance(x, Tensor):
        raise InputError(f"{name} must be a tensor, got {type(x).__name__}")
    if x.is_nested or x.layout != torch.strided:
        kind = "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
        raise InputError(f"{name} is a {kind} tensor; give a dense (strided) one")
    if x.dtype not in DTYPES:
        raise InputError(f"{name} has dtype {x.dtype}; give float32, bfloat16, float16 or float64")
    if x.dim() == 0 or x.shape[-1] == 0:
        raise InputError(f"{name} has shape {tuple(x.shape)}; its last dimension must hold numbers")
