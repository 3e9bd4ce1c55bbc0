"""The public functions of sparse attention: checks at the door, then the registered operators."""

import math
import numbers
from collections.abc import Sequence
from typing import Any, Literal, get_args, overload

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hexad.core.errors import InputError
from hexad.core.validation import check_flag
from hexad.kernels.sparse_attention import checks, op
from hexad.kernels.sparse_attention.backends import (
    Backend,
    Call,
    Name,
    PredictionBackend,
    choose,
    choose_prediction,
    reason_against,
)
from hexad.kernels.sparse_attention.prediction import causal_tiles
from hexad.kernels.sparse_attention.stats import AttentionStats

PerHead = float | Sequence[float] | Tensor


def available_backends(device: str = "cpu", dtype: torch.dtype = torch.float32) -> dict[str, str | None]:
    """Every backend, with the reason why it cannot serve `device` and `dtype` here (None where it can)."""
    call = Call(device=device, dtype=dtype)
    return {name: reason_against(name, call) for name in get_args(Name)}


def _scale(scale: float | None, d: int) -> float:
    if scale is None:
        return d**-0.5
    if isinstance(scale, bool) or not isinstance(scale, numbers.Real):
        raise InputError(f"scale must be a number, got {scale!r}")
    if not (math.isfinite(scale) and scale > 0):
        # torch's own causal attention is wrong for a scale of zero or less, and the backends build on it.
        mend = "; negate q instead" if scale < 0 else ""
        raise InputError(f"scale must be a finite number above zero, got {scale}{mend}")
    return float(scale)


def _check_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    is_causal: bool,
    block_q: int,
    block_k: int,
    pv_threshold: PerHead | None,
    quantize: bool,
    backend: Backend,
) -> tuple[Name, Tensor | None]:
    """Reject what can be rejected unseen; the backend that will run, and pv_threshold by head."""
    check_flag("is_causal", is_causal)
    check_flag("quantize", quantize)
    checks.check_tensors(q, k, v, is_causal=is_causal, names="qkv")
    checks.check_blocks(block_q, block_k)
    checks.check_inference_only(q, k, v)
    threshold = None if pv_threshold is None else checks.per_head("pv_threshold", pv_threshold, q.shape[1])
    call = Call(q.device.type, q.dtype, block_q, block_k, quantize, threshold is not None)
    return choose(backend, call), threshold


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_mask: Tensor,
    *,
    is_causal: bool,
    scale: float | None,
    block_q: int,
    block_k: int,
    threshold: Tensor | None,
    quantize: bool,
    chosen: Name,
    return_stats: bool,
    q_and_k_checked: bool,
) -> Tensor | tuple[Tensor, AttentionStats]:
    out, counts = op.block_sparse_attention(
        q.detach(),
        k.detach(),
        v.detach(),
        block_mask,
        threshold,
        is_causal,
        _scale(scale, q.shape[-1]),
        block_q,
        block_k,
        quantize,
        chosen,
        q_and_k_checked,
    )
    if not return_stats:
        return out
    batch, heads, q_blocks, k_blocks = block_mask.shape
    needed = q_blocks * k_blocks
    if is_causal:
        needed = int(causal_tiles(q.shape[2], k.shape[2], block_q, block_k).sum())
    if counts.is_meta:
        raise InputError("q, k and v are on the meta device and hold no numbers; ask for no return_stats")
    kept, skipped = counts.tolist()
    return out, AttentionStats(chosen, batch * heads * needed, kept, skipped)


def predict_block_mask(
    q: Float[Tensor, "batch q_heads n_q d"],
    k: Float[Tensor, "batch k_heads n_k d"],
    *,
    is_causal: bool = False,
    scale: float | None = None,
    theta: PerHead = 0.6,
    tau: PerHead | None = 0.98,
    topk: PerHead | None = None,
    attention_sink: bool = False,
    force_diagonal: bool | None = None,
    block_q: int = 128,
    block_k: int = 64,
    smooth_k: bool = True,
    backend: PredictionBackend = "auto",
) -> Bool[Tensor, "batch q_heads q_blocks k_blocks"]:
    """Predict which tiles of the attention map to compute (SpargeAttn's first filter).

    Args:
        q: queries.
        k: keys; q_heads must be a multiple of k_heads (grouped-query attention).
        is_causal: query r sees key c where c <= r + n_k - n_q. That aligns the last query with the last
            key, as a chunk of a prefill with cached keys needs; scaled_dot_product_attention's own
            is_causal aligns the first ones, which differs where n_q < n_k. n_q > n_k is refused.
        scale: factor of the scores, d**-0.5 where None.
        theta: self-similarity in [-1, 1] above which a block may be judged by its mean; blocks below are
            kept whole. 1 makes a head dense. One number or one a query head.
        tau: probability mass in [0, 1] to keep, one number or one a query head. None where topk is given.
        topk: share in [0, 1] of the key blocks to keep, one number or one a query head. Needs tau=None.
        attention_sink: always keep the first key block.
        force_diagonal: always keep the tiles on the diagonal; None means where is_causal (a deviation
            from the released code, without which a causal row may be left with no key).
        block_q: queries a tile spans.
        block_k: keys a tile spans.
        smooth_k: judge and score k without its mean token, which leaves attention itself unchanged.
        backend: "native" (CPU), "torch" (anywhere), or "auto" for the faster of those that can serve.

    Returns:
        True where a tile is to be computed.

    Raises:
        InputError: for shapes, dtypes or devices that do not fit, options out of range, NaN or infinity.
    """
    check_flag("is_causal", is_causal)
    check_flag("attention_sink", attention_sink)
    check_flag("smooth_k", smooth_k)
    if force_diagonal is not None:
        check_flag("force_diagonal", force_diagonal)
    checks.check_tensors(q, k, None, is_causal=is_causal, names="qk")
    native = choose_prediction(backend, q.device.type, q.dtype) == "native"
    checks.check_blocks(block_q, block_k)
    if (tau is None) == (topk is None):
        raise InputError("give exactly one of tau and topk (topk=0.5 needs tau=None)")
    heads = q.shape[1]
    return op.predict_block_mask(
        q.detach(),
        k.detach(),
        checks.per_head("theta", theta, heads),
        None if tau is None else checks.per_head("tau", tau, heads),
        None if topk is None else checks.per_head("topk", topk, heads),
        is_causal,
        _scale(scale, q.shape[-1]),
        attention_sink,
        is_causal if force_diagonal is None else force_diagonal,
        block_q,
        block_k,
        smooth_k,
        native,
    )


# The overloads tell apart what return_stats decides; they do not repeat the other options.
@overload
def block_sparse_attention(  # ty: ignore[inconsistent-overload-implementation]
    q: Tensor, k: Tensor, v: Tensor, block_mask: Tensor, *, return_stats: Literal[False] = ..., **options: Any
) -> Tensor: ...
@overload
def block_sparse_attention(  # ty: ignore[inconsistent-overload-implementation]
    q: Tensor, k: Tensor, v: Tensor, block_mask: Tensor, *, return_stats: Literal[True], **options: Any
) -> tuple[Tensor, AttentionStats]: ...
@overload
def block_sparse_attention(  # ty: ignore[inconsistent-overload-implementation]
    q: Tensor, k: Tensor, v: Tensor, block_mask: Tensor, *, return_stats: bool, **options: Any
) -> Any: ...
def block_sparse_attention(
    q: Float[Tensor, "batch q_heads n_q d"],
    k: Float[Tensor, "batch k_heads n_k d"],
    v: Float[Tensor, "batch k_heads n_k d_v"],
    block_mask: Bool[Tensor, "batch q_heads q_blocks k_blocks"],
    *,
    is_causal: bool = False,
    scale: float | None = None,
    block_q: int = 128,
    block_k: int = 64,
    pv_threshold: PerHead | None = None,
    quantize: bool = False,
    backend: Backend = "auto",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, AttentionStats]:
    """Softmax attention over the tiles that `block_mask` keeps, exact within them.

    Args:
        q: queries.
        k: keys; q_heads must be a multiple of k_heads.
        v: values.
        block_mask: which (q block, k block) tiles to compute, for instance of `predict_block_mask`.
        is_causal: query r sees key c where c <= r + n_k - n_q (see `predict_block_mask` on alignment).
        scale: factor of the scores, d**-0.5 where None.
        block_q: queries a tile spans.
        block_k: keys a tile spans.
        pv_threshold: lambda of the second filter, in log2 units, one number or one a query head: a tile
            whose scores all lie more than this below the running maximum is left out. None is off.
        quantize: round Q and K (without its mean token) to INT8, one scale a tile, as SageAttention
            does. P V keeps the precision of the inputs, but for the native path, where it may run in
            bfloat16.
        backend: "auto" takes the fastest that honours all options on the tensors' device; a backend
            asked for by name runs or raises.
        return_stats: also return an `AttentionStats` (eager mode only: it reads counts from the device).

    Returns:
        The output (batch, q_heads, n_q, d_v), or (output, AttentionStats).

    Raises:
        InputError: for shapes, dtypes or devices that do not fit, options out of range, NaN or infinity,
            a query left without a key, inputs that require a gradient, a backend that cannot run.
    """
    chosen, threshold = _check_call(
        q,
        k,
        v,
        is_causal=is_causal,
        block_q=block_q,
        block_k=block_k,
        pv_threshold=pv_threshold,
        quantize=quantize,
        backend=backend,
    )
    checks.check_mask(block_mask, q, k, block_q, block_k)
    return _attend(
        q,
        k,
        v,
        block_mask,
        is_causal=is_causal,
        scale=scale,
        block_q=block_q,
        block_k=block_k,
        threshold=threshold,
        quantize=quantize,
        chosen=chosen,
        return_stats=return_stats,
        q_and_k_checked=False,
    )


# The overloads tell apart what return_stats decides; they do not repeat the other options.
@overload
def sparse_attention(  # ty: ignore[inconsistent-overload-implementation]
    q: Tensor, k: Tensor, v: Tensor, *, return_stats: Literal[False] = ..., **options: Any
) -> Tensor: ...
@overload
def sparse_attention(  # ty: ignore[inconsistent-overload-implementation]
    q: Tensor, k: Tensor, v: Tensor, *, return_stats: Literal[True], **options: Any
) -> tuple[Tensor, AttentionStats]: ...
@overload
def sparse_attention(  # ty: ignore[inconsistent-overload-implementation]
    q: Tensor, k: Tensor, v: Tensor, *, return_stats: bool, **options: Any
) -> Any: ...
def sparse_attention(
    q: Float[Tensor, "batch q_heads n_q d"],
    k: Float[Tensor, "batch k_heads n_k d"],
    v: Float[Tensor, "batch k_heads n_k d_v"],
    *,
    is_causal: bool = False,
    scale: float | None = None,
    theta: PerHead = 0.6,
    tau: PerHead | None = 0.98,
    topk: PerHead | None = None,
    attention_sink: bool = False,
    force_diagonal: bool | None = None,
    block_q: int = 128,
    block_k: int = 64,
    smooth_k: bool = True,
    pv_threshold: PerHead | None = None,
    quantize: bool = False,
    backend: Backend = "auto",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, AttentionStats]:
    """Attention that predicts the tiles worth computing and skips the rest (SpargeAttn).

    `predict_block_mask` followed by `block_sparse_attention`; all options are theirs, and so are the
    errors. Attention masks and dropout are not supported. is_causal aligns the last query with the last
    key where n_q < n_k.
    """
    chosen, threshold = _check_call(
        q,
        k,
        v,
        is_causal=is_causal,
        block_q=block_q,
        block_k=block_k,
        pv_threshold=pv_threshold,
        quantize=quantize,
        backend=backend,
    )
    block_mask = predict_block_mask(
        q,
        k,
        is_causal=is_causal,
        scale=scale,
        theta=theta,
        tau=tau,
        topk=topk,
        attention_sink=attention_sink,
        force_diagonal=force_diagonal,
        block_q=block_q,
        block_k=block_k,
        smooth_k=smooth_k,
        backend="native" if chosen == "native" else "torch",
    )
    return _attend(
        q,
        k,
        v,
        block_mask,
        is_causal=is_causal,
        scale=scale,
        block_q=block_q,
        block_k=block_k,
        threshold=threshold,
        quantize=quantize,
        chosen=chosen,
        return_stats=return_stats,
        q_and_k_checked=True,
    )
