"""torch's flex_attention as a backend, and the conversion of a tile mask to its BlockMask."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask


def to_flex_block_mask(
    block_mask: Bool[Tensor, "batch heads q_blocks k_blocks"],
    n_q: int,
    n_k: int,
    *,
    is_causal: bool = False,
    block_q: int = 128,
    block_k: int = 64,
) -> BlockMask:
    """The same tiles as a `BlockMask` for `torch.nn.attention.flex_attention.flex_attention`.

    Built from tile counts and indices alone (no n_q x n_k mask). Under `is_causal` (query r sees key c
    where c <= r + n_k - n_q) only the tiles on the diagonal are left to the mask function. That function
    looks the tile up as well, because flex_attention ignores the tile lists where it runs uncompiled.
    """
    offset = n_k - n_q

    def kept(batch: Tensor, head: Tensor, q_index: Tensor, k_index: Tensor) -> Tensor:
        keep = block_mask[batch, head, q_index // block_q, k_index // block_k]
        return keep & (k_index <= q_index + offset) if is_causal else keep

    whole = torch.ones_like(block_mask[0, 0])
    if is_causal:
        first_row = torch.arange(block_mask.shape[2], device=block_mask.device) * block_q + offset
        last_key = torch.arange(1, block_mask.shape[3] + 1, device=block_mask.device) * block_k - 1
        whole = last_key <= first_row[:, None]
    partial_count, partial_index = _ordered(block_mask & ~whole)
    full_count, full_index = _ordered(block_mask & whole)
    return BlockMask.from_kv_blocks(
        partial_count,
        partial_index,
        full_count,
        full_index,
        BLOCK_SIZE=(block_q, block_k),
        mask_mod=kept,
        seq_lengths=(n_q, n_k),
        compute_q_blocks=False,  # needed by the backward pass alone
    )


def _ordered(
    tiles: Bool[Tensor, "batch heads q_blocks k_blocks"],
) -> tuple[Int[Tensor, "batch heads q_blocks"], Int[Tensor, "batch heads q_blocks k_blocks"]]:
    """Count of the kept tiles of each row, and their indices in ascending order before all others."""
    order = tiles.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
    return tiles.sum(-1, dtype=torch.int32), order.to(torch.int32)
