"""The GPU path: one Triton program for each query tile of each head, walking its kept key tiles only.

Steps 5 and 6 of the method (see `reference`): INT8 scores where asked for, online softmax in base 2, and
the second filter decided by the whole query tile, as in the authors' CUDA kernels.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hexad.kernels.sparse_attention.prediction import num_blocks, tile_lists
from hexad.kernels.sparse_attention.quantize import quantize_tiles, smooth_keys
from hexad.kernels.sparse_attention.reference import LOG2_E, RUNNING_MAX_START

MIN_BLOCK = 16  # tl.dot takes no shorter side


@triton.jit
def _forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    q_scale_ptr,
    k_scale_ptr,
    count_ptr,
    index_ptr,
    threshold_ptr,
    skipped_ptr,
    q_stride_b,
    q_stride_h,
    q_stride_n,
    k_stride_b,
    k_stride_h,
    k_stride_n,
    v_stride_b,
    v_stride_h,
    v_stride_n,
    heads,
    group,
    n_q,
    n_k,
    k_blocks,
    score_scale,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PADDED_HEAD_DIM: tl.constexpr,
    PADDED_VALUE_DIM: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CAUSAL: tl.constexpr,
    QUANTIZED: tl.constexpr,
    FILTERED: tl.constexpr,
    MAX_START: tl.constexpr,
):
    tile = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    k_head = head // group
    row_of_tiles = (batch * heads + head) * tl.num_programs(0) + tile

    row = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    d = tl.arange(0, PADDED_HEAD_DIM)
    d_v = tl.arange(0, PADDED_VALUE_DIM)
    real_row = row < n_q
    q_tile = tl.load(
        q_ptr + batch * q_stride_b + head * q_stride_h + row[:, None].to(tl.int64) * q_stride_n + d[None, :],
        mask=real_row[:, None] & (d < HEAD_DIM)[None, :],
        other=0,
    )
    row_scale = score_scale
    if QUANTIZED:
        row_scale *= tl.load(q_scale_ptr + row_of_tiles)
    if FILTERED:
        threshold = tl.load(threshold_ptr + head)
    k_base = k_ptr + batch * k_stride_b + k_head * k_stride_h
    v_base = v_ptr + batch * v_stride_b + k_head * v_stride_h
    k_scale_base = k_scale_ptr + (batch * (heads // group) + k_head) * k_blocks
    position = row + n_k - n_q

    running_max = tl.full([BLOCK_Q], MAX_START, tl.float32)
    normaliser = tl.full([BLOCK_Q], 0.0, tl.float32)
    output = tl.full([BLOCK_Q, PADDED_VALUE_DIM], 0.0, tl.float32)
    skipped = 0
    for slot in range(tl.load(count_ptr + row_of_tiles)):
        key_tile = tl.load(index_ptr + row_of_tiles * k_blocks + slot)
        column = key_tile * BLOCK_K + tl.arange(0, BLOCK_K)
        real_column = column < n_k
        k_tile = tl.load(
            k_base + column[None, :].to(tl.int64) * k_stride_n + d[:, None],
            mask=real_column[None, :] & (d < HEAD_DIM)[:, None],
            other=0,
        )
        if QUANTIZED:
            product = tl.dot(q_tile, k_tile, out_dtype=tl.int32).to(tl.float32)
            scores = product * (row_scale * tl.load(k_scale_base + key_tile))
        else:
            scores = tl.dot(q_tile, k_tile, input_precision="ieee") * row_scale
        seen = real_column[None, :]
        if CAUSAL:
            seen = seen & (column[None, :] <= position[:, None])
        scores = tl.where(seen, scores, float("-inf"))

        tile_max = tl.max(scores, 1)
        enters = True
        if FILTERED:
            # Rows past the end of the sequence have no say in whether the tile is worth adding.
            rise = tl.max(tl.where(real_row, tile_max - running_max, float("-inf")), 0)
            enters = rise + threshold > 0
        if enters:
            new_max = tl.maximum(running_max, tile_max)
            rescale = tl.exp2(running_max - new_max)
            weights = tl.exp2(scores - new_max[:, None])
            normaliser = normaliser * rescale + tl.sum(weights, 1)
            v_tile = tl.load(
                v_base + column[:, None].to(tl.int64) * v_stride_n + d_v[None, :],
                mask=real_column[:, None] & (d_v < VALUE_DIM)[None, :],
                other=0,
            )
            output = output * rescale[:, None]
            output += tl.dot(weights.to(v_tile.dtype), v_tile, input_precision="ieee")
            running_max = new_max
        else:
            # No score rose above the running maximum, so there is nothing to rescale either.
            skipped += 1
    tl.store(skipped_ptr + row_of_tiles, skipped)
    # Rows past the end are never stored; dividing them by one keeps 0 / 0 out.
    output = output / tl.where(real_row, normaliser, 1.0)[:, None]
    out_base = out_ptr + (batch * heads + head) * n_q * VALUE_DIM
    tl.store(
        out_base + row[:, None].to(tl.int64) * VALUE_DIM + d_v[None, :],
        output.to(out_ptr.dtype.element_ty),
        mask=real_row[:, None] & (d_v < VALUE_DIM)[None, :],
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
    pv_threshold: Float[Tensor, " q_heads"] | None = None,
    quantize: bool = False,
) -> tuple[Float[Tensor, "batch q_heads n_q d_v"], Int[Tensor, ""]]:
    """Attention over the kept tiles of checked tensors, and how many tiles the second filter skipped.

    Block sizes are powers of two of at least 16. Head dims that are none are padded in registers.
    """
    if q.dtype == torch.bfloat16 and not isinstance(_forward_kernel, triton.JITFunction):
        # The interpreter multiplies bfloat16 tiles by their bit patterns (triton 3.9, issue 11584).
        out, skipped = attend(
            q.float(),
            k.float(),
            v.float(),
            block_mask,
            is_causal=is_causal,
            scale=scale,
            block_q=block_q,
            block_k=block_k,
            pv_threshold=pv_threshold,
            quantize=quantize,
        )
        return out.to(torch.bfloat16), skipped
    (batch, heads, n_q, d), (_, k_heads, n_k, d_v) = q.shape, v.shape
    count, index = tile_lists(block_mask)
    q_scale = k_scale = q.new_empty(1, dtype=torch.float32)
    if quantize:
        q, q_scale = quantize_tiles(q, block_q)
        k, k_scale = quantize_tiles(smooth_keys(k), block_k)
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    out = torch.empty(batch, heads, n_q, d_v, dtype=v.dtype, device=v.device)
    skipped = torch.empty(count.shape, dtype=torch.int32, device=v.device)
    # The product of int8 tiles wants 32 columns at least.
    narrowest = 32 if quantize else MIN_BLOCK
    # ty takes every argument of a jitted function for a constexpr.
    launch: Any = _forward_kernel[(num_blocks(n_q, block_q), heads, batch)]
    launch(
        q,
        k,
        v,
        out,
        q_scale,
        k_scale,
        count,
        index,
        q_scale if pv_threshold is None else pv_threshold,
        skipped,
        *q.stride()[:3],
        *k.stride()[:3],
        *v.stride()[:3],
        heads,
        heads // k_heads,
        n_q,
        n_k,
        index.shape[-1],
        scale * LOG2_E,
        HEAD_DIM=d,
        VALUE_DIM=d_v,
        PADDED_HEAD_DIM=max(narrowest, 1 << (d - 1).bit_length()),
        PADDED_VALUE_DIM=max(MIN_BLOCK, 1 << (d_v - 1).bit_length()),
        BLOCK_Q=block_q,
        BLOCK_K=block_k,
        CAUSAL=is_causal,
        QUANTIZED=quantize,
        FILTERED=pv_threshold is not None,
        MAX_START=RUNNING_MAX_START,
        # What ptxas says for sm_80 and sm_90: with four warps the registers of a 128 x 64 tile spill.
        num_warps=8 if block_q * max(d, d_v) >= 128 * 64 else 4,
    )
    return out, skipped.sum()
