"""The plain-torch CPU path: kept key tiles copied next to each other, one fused attention call a bucket.

Rows of tiles (a row is one query tile of one head) that keep equally many key tiles form a bucket. Their
tiles are gathered into one contiguous buffer and attended to by torch's fused CPU kernel without a mask.
Only tiles that the causal diagonal crosses need one; they go through a second, narrow call and are merged
by the log-sum-exp of both parts. The second filter (pv_threshold) has no place here: the fused kernel
does not show its running maximum.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from hexad.kernels.sparse_attention.prediction import causal_tiles, compute_dtype, num_blocks
from hexad.kernels.sparse_attention.quantize import dequantize_tiles, quantize_tiles, smooth_keys

# Bytes of gathered keys and values at a time: enough for one call to busy every core, small enough to
# stay in the shared cache between the copy and its use.
GATHER_BYTES = 8 << 20


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
    quantize: bool = False,
) -> Float[Tensor, "batch q_heads n_q d_v"]:
    """Attention over the kept tiles of checked CPU tensors; under `is_causal`, no kept tile is all hidden.

    `quantize` emulates INT8: Q and K take the values that their integers stand for, in float32.
    """
    dtype, d, d_v = q.dtype, q.shape[-1], v.shape[-1]
    if quantize:
        q = dequantize_tiles(*quantize_tiles(q, block_q), block_q)
        k = dequantize_tiles(*quantize_tiles(smooth_keys(k), block_k), block_k)
        v = v.to(q.dtype)
    if d != d_v:
        # The fused kernel wants one head dim for all; columns of zeros change neither scores nor outputs.
        q, k, v = (pad(x, (0, max(d, d_v) - x.shape[-1])) for x in (q, k, v))
    (batch, heads, n_q, width), (_, k_heads, n_k, _) = q.shape, k.shape
    options = {"is_causal": is_causal, "scale": scale, "block_q": block_q, "block_k": block_k}
    whole = torch.zeros(batch, heads, dtype=torch.bool)
    if not is_causal or n_q == n_k:
        # A head that keeps every tile (a tuned model has such heads) needs nothing gathered.
        needed = causal_tiles(n_q, n_k, block_q, block_k) if is_causal else torch.tensor(True)
        whole = (block_mask | ~needed).flatten(2).all(-1)
    if not whole.any():
        out = _attend_to_tiles(q, k, v, block_mask, **options)
    else:
        out = q.new_empty(batch, heads, n_q, width)
        for chosen, dense in ((whole, True), (~whole, False)):
            b, h = chosen.nonzero(as_tuple=True)
            if not len(b):
                continue
            g = h // (heads // k_heads)
            some = (q[b, h][None], k[b, g][None], v[b, g][None])
            if dense:
                part = scaled_dot_product_attention(*some, is_causal=is_causal, scale=scale)
            else:
                part = _attend_to_tiles(*some, block_mask[b, h][None], **options)
            out[b, h] = part[0]
    return out[..., :d_v].to(dtype).contiguous()


def _attend_to_tiles(
    q: Float[Tensor, "batch q_heads n_q d"],
    k: Float[Tensor, "batch k_heads n_k d"],
    v: Float[Tensor, "batch k_heads n_k d"],
    block_mask: Bool[Tensor, "batch q_heads q_blocks k_blocks"],
    *,
    is_causal: bool,
    scale: float,
    block_q: int,
    block_k: int,
) -> Float[Tensor, "batch q_heads n_q d"]:
    (batch, heads, n_q, d), (_, k_heads, n_k, _) = q.shape, k.shape
    q_blocks, k_blocks = block_mask.shape[2:]
    q_tiles, k_tiles, v_tiles = (_tiles(x, block) for x, block in ((q, block_q), (k, block_k), (v, block_k)))
    head = torch.arange(batch * heads)
    first_tile = (head // heads * k_heads + head % heads // (heads // k_heads)) * k_blocks
    first_tile = first_tile.repeat_interleave(q_blocks)
    tiles_a_call = max(1, GATHER_BYTES // (2 * block_k * d * q.element_size()))

    # Every row keeps a tile, but under is_causal some keep none that is unmasked.
    out = torch.zeros_like(q_tiles) if is_causal else torch.empty_like(q_tiles)
    log_sum = torch.full(q_tiles.shape[:2], float("-inf"), dtype=compute_dtype(q.dtype))
    diagonal = _diagonal(n_q, n_k, block_q, block_k) if is_causal else None
    unmasked = block_mask if diagonal is None else block_mask & ~diagonal.crosses
    tail = k_blocks * block_k - n_k
    for rows, tiles, tokens in _buckets(unmasked.flatten(0, 2), block_k, tail, tiles_a_call):
        tiles = tiles + first_tile[rows, None]
        out[rows], log_sum[rows] = _fused(
            q_tiles[rows], _gather(k_tiles, tiles, tokens), _gather(v_tiles, tiles, tokens), scale
        )
    # Tiles of one query and one key are seen whole or not at all: no tile is crossed then.
    if diagonal is not None and diagonal.window.shape[1]:
        _add_diagonal(
            out, log_sum, q_tiles, k_tiles, v_tiles, block_mask, diagonal, first_tile, tiles_a_call, scale
        )
    return out.reshape(batch, heads, q_blocks * block_q, d)[:, :, :n_q]


def _tiles(x: Float[Tensor, "batch heads n d"], block: int) -> Float[Tensor, "batch_heads_blocks block d"]:
    """All tiles of all heads in one list, the last of each padded with zeros where tokens are missing."""
    n, d = x.shape[-2:]
    missing = num_blocks(n, block) * block - n
    return (pad(x, (0, 0, 0, missing)) if missing else x).reshape(-1, block, d)


def _buckets(
    kept: Bool[Tensor, "rows k_blocks"], block_k: int, tail: int, tiles_a_call: int
) -> Iterator[tuple[Int[Tensor, " some_rows"], Int[Tensor, "some_rows count"], int]]:
    """Rows of equally many kept tiles, those tiles in ascending order, and how many tokens they hold.

    `tail` tokens are missing from the last key tile, so rows that keep it are bucketed apart.
    """
    count = kept.sum(-1)
    start = count.cumsum(0) - count
    column = kept.nonzero()[:, 1]
    size = count * block_k - kept[:, -1].long() * tail
    order = size.argsort()
    sizes, members = torch.unique_consecutive(size[order], return_counts=True)
    first = 0
    for tokens, rows_here in zip(sizes.tolist(), members.tolist(), strict=True):
        if tokens:
            tiles_each = num_blocks(tokens, block_k)
            step = max(1, tiles_a_call // tiles_each)
            for rows in order[first : first + rows_here].split(step):
                yield rows, column[start[rows, None] + torch.arange(tiles_each)], tokens
        first += rows_here


def _gather(
    tiles: Float[Tensor, "all_tiles block d"], index: Int[Tensor, "rows count"], tokens: int
) -> Float[Tensor, "rows tokens d"]:
    """The indexed tiles of each row, one after the other, without the missing tokens of the last."""
    rows, count = index.shape
    chosen = tiles.index_select(0, index.flatten())
    return chosen.view(rows, count * tiles.shape[1], tiles.shape[2])[:, :tokens]


def _fused(
    q: Float[Tensor, "rows block_q d"],
    k: Float[Tensor, "rows tokens d"],
    v: Float[Tensor, "rows tokens d"],
    scale: float,
    attn_mask: Float[Tensor, "rows block_q tokens"] | None = None,
) -> tuple[Float[Tensor, "rows block_q d"], Float[Tensor, "rows block_q"]]:
    """Output and natural log-sum-exp of torch's own CPU kernel, the one behind SDPA."""
    out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q[:, None],
        k[:, None],
        v[:, None],
        attn_mask=None if attn_mask is None else attn_mask[:, None],
        scale=scale,
    )
    return out[:, 0], log_sum[:, 0]


class _Diagonal(NamedTuple):
    """Where the causal diagonal runs (query r stands at key position r + n_k - n_q)."""

    crosses: Bool[Tensor, "q_blocks k_blocks"]  # tiles of which some query sees a part only
    window: Int[Tensor, "q_blocks width"]  # consecutive key tiles that hold every crossed tile of a row
    visible: Bool[Tensor, "q_blocks block_q width block_k"]  # which keys of the window a query sees


def _diagonal(n_q: int, n_k: int, block_q: int, block_k: int) -> _Diagonal:
    q_blocks, k_blocks = num_blocks(n_q, block_q), num_blocks(n_k, block_k)
    first = torch.arange(q_blocks) * block_q + n_k - n_q
    last = (first + block_q).clamp(max=n_k) - 1
    tile = torch.arange(k_blocks)
    crosses = ((tile + 1) * block_k - 1 > first[:, None]) & (tile * block_k <= last[:, None])
    # A window that would run past the last tile holds tiles that no mask keeps (see _add_diagonal).
    window = ((first + 1) // block_k)[:, None] + torch.arange(int(crosses.sum(-1).max()))
    position = first[:, None] + torch.arange(block_q)
    key = window[..., None] * block_k + torch.arange(block_k)
    visible = (key[:, None] <= position[:, :, None, None]) & (key[:, None] < n_k)
    return _Diagonal(crosses, window, visible)


def _add_diagonal(
    out: Tensor,
    log_sum: Tensor,
    q_tiles: Tensor,
    k_tiles: Tensor,
    v_tiles: Tensor,
    block_mask: Tensor,
    diagonal: _Diagonal,
    first_tile: Tensor,
    tiles_a_call: int,
    scale: float,
) -> None:
    """Attend to the crossed tiles and merge the result into `out` and `log_sum`, in place."""
    q_blocks, k_blocks = diagonal.crosses.shape
    width = diagonal.window.shape[1]
    inside = diagonal.window.clamp(max=k_blocks - 1)
    kept = (block_mask & diagonal.crosses).gather(-1, inside.expand(*block_mask.shape[:2], -1, -1))
    kept = (kept & (diagonal.window < k_blocks)).flatten(0, 2)
    for rows in kept.any(-1).nonzero()[:, 0].split(max(1, tiles_a_call // width)):
        block = rows % q_blocks
        visible = (diagonal.visible[block] & kept[rows, None, :, None]).flatten(2)
        tiles = inside[block] + first_tile[rows, None]
        tokens = width * k_tiles.shape[1]
        attn_mask = torch.zeros(visible.shape, dtype=out.dtype).masked_fill_(~visible, float("-inf"))
        part, part_sum = _fused(
            q_tiles[rows], _gather(k_tiles, tiles, tokens), _gather(v_tiles, tiles, tokens), scale, attn_mask
        )
        # The kernel answers a query that sees none of these keys with zeros and a log-sum of zero.
        part_sum = part_sum.masked_fill(~visible.any(-1), float("-inf"))
        total = torch.logaddexp(log_sum[rows], part_sum)
        before = torch.exp(log_sum[rows] - total)[..., None]
        out[rows] = (out[rows] * before + part * torch.exp(part_sum - total)[..., None]).to(out.dtype)
        log_sum[rows] = total
