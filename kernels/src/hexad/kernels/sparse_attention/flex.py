"""torch's flex_attention as a backend, and the conversion of a tile mask to its BlockMask."""

from collections.abc import Callable
from functools import lru_cache
from types import FunctionType

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from hexad.kernels.sparse_attention.prediction import tile_lists


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
    partial_count, partial_index = tile_lists(block_mask & ~whole)
    full_count, full_index = tile_lists(block_mask & whole)
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


def attend(
    q: Float[Tensor, "batch q_heads n_q d"],
    k: Float[Tensor, "batch k_heads n_k d"],
    v: Float[Tensor, "batch k_heads n_k d_v"],
    block_mask: Bool[Tensor, "batch q_heads q_blocks k_blocks"],
    *,
    is_causal: bool,
    scale: float,
    block_q: int,
    block_k: int,
) -> Float[Tensor, "batch q_heads n_q d_v"]:
    """Attention over the kept tiles of checked tensors by compiled flex_attention.

    The first call of each combination of shapes, strides, dtype and options compiles (seconds).
    """
    blocks = to_flex_block_mask(
        block_mask, q.shape[2], k.shape[2], is_causal=is_causal, block_q=block_q, block_k=block_k
    )
    layout = tuple((tuple(x.shape), x.stride()) for x in (q, k, v))
    attention = _compiled((layout, q.dtype, q.device, is_causal, block_q, block_k))
    return attention(q, k, v, blocks, scale, q.shape[1] != k.shape[1])


def _attention(q: Tensor, k: Tensor, v: Tensor, blocks: BlockMask, scale: float, enable_gqa: bool) -> Tensor:
    return flex_attention(q, k, v, block_mask=blocks, scale=scale, enable_gqa=enable_gqa)


@lru_cache(maxsize=256)
def _compiled(_key: tuple) -> Callable[..., Tensor]:
    """A compiled function of its own for each class of calls.

    torch.compile counts compilations by code object and, past the eighth, falls back to an uncompiled
    n_q x n_k attention without a word; a copy of the code for each class starts the count anew, and
    fullgraph turns any other fallback into an error. Shapes stay static, because the C++ that inductor
    writes for dynamic ones does not compile (torch 2.15).
    """
    function = FunctionType(_attention.__code__.replace(), _attention.__globals__)
    return torch.compile(function, fullgraph=True, dynamic=False)
