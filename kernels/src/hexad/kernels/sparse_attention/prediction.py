"""Stage 1 of SpargeAttn: which tiles of the attention map to compute, predicted from q and k alone.

Steps as in arXiv 2502.18137, section 3.2 and algorithm 1, lines 1-6, read together with the authors' code:
smooth k, pool each block to one token and judge whether that token speaks for it, take a softmax over the
pooled scores, keep the largest until their mass reaches tau (or a fixed share, topk), and add every tile
of a block that could not be judged.

Alignment. Query row r stands at key position r + n_k - n_q: the last query sees the last key ("bottom
right"). With n_q == n_k this is the ordinary causal mask; with n_q < n_k it is what a chunk of a prefill
needs, whose earlier keys are already cached. `torch.nn.functional.scaled_dot_product_attention` aligns its
own `is_causal` at the top left instead, so the two differ where n_q != n_k.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

# On a CPU the pooling goes through its input in pieces that stay in the last-level cache, because fresh
# temporaries of the input's size cost more (page faults) than the arithmetic does.
_CACHE_ELEMENTS = 1 << 21


def num_blocks(n: int, block: int) -> int:
    """Number of blocks of `block` tokens that cover `n` tokens; the last may be shorter."""
    return -(-n // block)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype of sums and scores for inputs of `dtype`: float64 stays, everything else is float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def causal_tiles(
    n_q: int, n_k: int, block_q: int, block_k: int, device: torch.device | str = "cpu"
) -> Bool[Tensor, "q_blocks k_blocks"]:
    """Tiles in which at least one query may see at least one key, queries aligned at the bottom right."""
    last_row = (torch.arange(1, num_blocks(n_q, block_q) + 1, device=device) * block_q).clamp(max=n_q) - 1
    first_key = torch.arange(num_blocks(n_k, block_k), device=device) * block_k
    return first_key <= last_row[:, None] + (n_k - n_q)


def diagonal_tiles(
    n_q: int, n_k: int, block_q: int, block_k: int, device: torch.device | str = "cpu"
) -> Bool[Tensor, "q_blocks k_blocks"]:
    """Tiles that hold the key at the position of one of their queries, aligned at the bottom right.

    Queries that stand before the first key (n_q > n_k) have no such tile.
    """
    first_row = torch.arange(num_blocks(n_q, block_q), device=device) * block_q + (n_k - n_q)
    first_key = torch.arange(num_blocks(n_k, block_k), device=device) * block_k
    return causal_tiles(n_q, n_k, block_q, block_k, device) & (first_key + block_k > first_row[:, None])


def tile_lists(
    block_mask: Bool[Tensor, "batch heads q_blocks k_blocks"],
) -> tuple[Int[Tensor, "batch heads q_blocks"], Int[Tensor, "batch heads q_blocks k_blocks"]]:
    """How many tiles each row keeps, and their indices, ascending, before those of all others (int32)."""
    order = block_mask.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
    return block_mask.sum(-1, dtype=torch.int32), order.to(torch.int32)


def _pieces(x: Tensor) -> Iterator[tuple[slice, slice]]:
    """(batch, head) slices of x: one for everything on an accelerator, cache-sized ones on a CPU."""
    batch, heads, n, d = x.shape
    if x.device.type != "cpu" or x.numel() <= _CACHE_ELEMENTS:
        yield slice(0, batch), slice(0, heads)
        return
    step = max(1, _CACHE_ELEMENTS // (n * d))
    for b in range(batch):
        for h in range(0, heads, step):
            yield slice(b, b + 1), slice(h, h + step)


def pool_blocks(
    x: Float[Tensor, "batch heads n d"], block: int, *, smooth: bool = False
) -> tuple[Float[Tensor, "batch heads blocks d"], Float[Tensor, "batch heads blocks"]]:
    """Mean token of each block, and how alike the block's tokens are.

    The self-similarity is the mean cosine over all n*n pairs of a block's n tokens, which is
    ||sum_t x_t / ||x_t|| ||^2 / n^2: no n x n matrix is built. A zero token counts as orthogonal to
    everything. `smooth` first subtracts the mean over all tokens. Sums run in float32 (float64 for
    float64), whatever the dtype of x.
    """
    batch, heads, n, d = x.shape
    dtype = compute_dtype(x.dtype)
    blocks = num_blocks(n, block)
    pooled = torch.empty(batch, heads, blocks, d, dtype=dtype, device=x.device)
    similarity = torch.empty(batch, heads, blocks, dtype=dtype, device=x.device)
    whole = n // block
    spans = ((slice(0, whole), 0, block), (slice(whole, blocks), whole * block, n % block))
    centred = None
    for piece in _pieces(x):
        part = x[piece].to(dtype)
        if smooth:
            mean = part.mean(-2, keepdim=True)
            # The first piece is the largest, so its buffer serves all others.
            centred = torch.empty_like(part) if centred is None else centred
            part = torch.sub(part, mean, out=centred[:, : part.shape[1]])
        norm = torch.linalg.vector_norm(part, dim=-1).clamp_(min=torch.finfo(dtype).tiny)
        inverse = norm.reciprocal_()
        # One product with the weights (1/n, 1/||x_t||) gives the mean and the sum of unit vectors.
        for span, start, length in spans:
            count = span.stop - span.start
            if count * length == 0:
                continue
            tokens = part[:, :, start : start + count * length].unflatten(2, (count, length))
            unit = inverse[:, :, start : start + count * length].unflatten(2, (count, length))
            sums = torch.stack((torch.full_like(unit, 1.0 / length), unit), dim=-2) @ tokens
            pooled[piece][:, :, span] = sums[..., 0, :]
            similarity[piece][:, :, span] = sums[..., 1, :].square().sum(-1) / length**2
    return pooled, similarity


def select_blocks(
    probability: Float[Tensor, "batch heads q_blocks k_blocks"],
    tau: Float[Tensor, " heads"] | None,
    topk: Int[Tensor, " heads"] | None,
) -> Bool[Tensor, "batch heads q_blocks k_blocks"]:
    """The largest entries of each row: while their sum is at most `tau`, or the `topk` largest.

    The entry that would cross tau is not taken, and at least one entry always is. Exactly one of tau
    (mass in [0, 1]) and topk (a count) is given, one value a head.
    """
    order = probability.sort(dim=-1, descending=True, stable=True)
    if tau is not None:
        # The whole mass is 1 but for rounding, so tau = 1 is said outright to take every block.
        bound = tau.masked_fill(tau >= 1, float("inf"))
        count = (order.values.cumsum(-1) <= bound[:, None, None]).sum(-1, keepdim=True)
    elif topk is not None:
        count = topk[:, None, None]
    else:
        raise ValueError("one of tau and topk is needed")
    taken = torch.arange(probability.shape[-1], device=probability.device) < count.clamp(min=1)
    taken = taken.expand_as(probability)
    return torch.zeros_like(taken).scatter_(-1, order.indices, taken)


def block_mask_from_inputs(
    q: Float[Tensor, "batch q_heads n_q d"],
    k: Float[Tensor, "batch k_heads n_k d"],
    *,
    theta: Float[Tensor, " q_heads"],
    tau: Float[Tensor, " q_heads"] | None,
    topk: Int[Tensor, " q_heads"] | None,
    is_causal: bool,
    scale: float,
    attention_sink: bool,
    force_diagonal: bool,
    block_q: int,
    block_k: int,
    smooth_k: bool,
) -> tuple[Bool[Tensor, "batch q_heads q_blocks k_blocks"], Bool[Tensor, ""]]:
    """The tile mask of checked inputs, and whether every number in q and k was finite.

    `theta`, `tau` and `topk` (a count of key blocks) carry one value a query head, on q's device.
    A head with theta >= 1 is dense: said outright, because a block of equal tokens can round to a
    similarity above 1.
    """
    (_, heads, n_q, _), (_, k_heads, n_k, _) = q.shape, k.shape
    pooled_q, similarity_q = pool_blocks(q, block_q)
    pooled_k, similarity_k = pool_blocks(k, block_k, smooth=smooth_k)
    finite = torch.isfinite(pooled_q).all() & torch.isfinite(pooled_k).all()
    group = heads // k_heads
    pooled_k = pooled_k.repeat_interleave(group, dim=1)
    fix_q = ~(similarity_q > theta[:, None])[..., None]
    fix_k = ~(similarity_k.repeat_interleave(group, dim=1) > theta[:, None])[..., None, :]

    scores = pooled_q @ pooled_k.transpose(-1, -2) * scale
    scores.masked_fill_(fix_k, float("-inf"))
    allowed = None
    if is_causal:
        allowed = causal_tiles(n_q, n_k, block_q, block_k, q.device)
        scores.masked_fill_(~allowed, float("-inf"))
    # A row whose judged blocks are all out of reach has no softmax; its tiles are forced on below.
    probability = torch.softmax(scores, dim=-1).nan_to_num_(nan=0.0)
    mask = select_blocks(probability, tau, topk) | fix_k | fix_q
    if force_diagonal:
        mask |= diagonal_tiles(n_q, n_k, block_q, block_k, q.device)
    mask |= (theta >= 1)[:, None, None]
    if allowed is not None:
        mask &= allowed
    if attention_sink:
        mask[..., 0] = True
    return mask, finite
