"""Tile masks that know nothing of the attention map: what a predicted mask must beat at the same density."""

import torch
from jaxtyping import Bool
from torch import Tensor


def random_mask_like(
    mask: Bool[Tensor, "batch heads q_blocks k_blocks"], generator: torch.Generator | None = None
) -> Bool[Tensor, "batch heads q_blocks k_blocks"]:
    """Tiles drawn at random, in each row as many as `mask` keeps there."""
    return _smallest(torch.rand(mask.shape, generator=generator), mask)


def window_mask_like(
    mask: Bool[Tensor, "batch heads q_blocks k_blocks"],
) -> Bool[Tensor, "batch heads q_blocks k_blocks"]:
    """The tiles nearest to the diagonal, in each row as many as `mask` keeps there."""
    q_blocks, k_blocks = mask.shape[2:]
    row = (torch.arange(q_blocks) + 0.5) / q_blocks
    column = (torch.arange(k_blocks) + 0.5) / k_blocks
    return _smallest((column - row[:, None]).abs().expand(mask.shape), mask)


def _smallest(cost: Tensor, mask: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
    rank = cost.argsort(dim=-1, stable=True).argsort(dim=-1)
    return rank.to(mask.device) < mask.sum(-1, keepdim=True)
