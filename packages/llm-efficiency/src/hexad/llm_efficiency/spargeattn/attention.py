"""`sparge_attention`: a stand-in for `scaled_dot_product_attention` that skips what the softmax would ignore.

The work is done by `hexad.kernels.sparse_attention` (arXiv 2502.18137, algorithm 1); this file gives it the
face of torch's own function, so that a model changes one call.
"""

from typing import Any, Literal, get_args, overload

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from hexad.core.errors import InputError
from hexad.core.validation import check_choice, check_flag
from hexad.kernels.sparse_attention import AttentionStats, predict_block_mask, sparse_attention
from hexad.kernels.sparse_attention.checks import check_tensors
from hexad.llm_efficiency.spargeattn.params import HeadParams, PerHead, check_params

Layout = Literal["HND", "NHD"]
Backend = Literal["auto", "reference", "native", "gather", "triton", "flex"]


# What the two overloads tell apart is return_stats; they do not repeat the other options.
@overload
def sparge_attention(  # ty: ignore[inconsistent-overload-implementation]
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    *,
    return_stats: Literal[False] = ...,
    **options: Any,
) -> Tensor: ...
@overload
def sparge_attention(  # ty: ignore[inconsistent-overload-implementation]
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    *,
    return_stats: Literal[True],
    **options: Any,
) -> tuple[Tensor, AttentionStats]: ...
def sparge_attention(
    q: Float[Tensor, "batch q_heads n_q d"],
    k: Float[Tensor, "batch k_heads n_k d"],
    v: Float[Tensor, "batch k_heads n_k d_v"],
    attn_mask: None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    theta: PerHead = 0.6,
    tau: PerHead | None = 0.98,
    topk: PerHead | None = None,
    pv_threshold: PerHead | None = None,
    attention_sink: bool = False,
    block_q: int = 128,
    block_k: int = 64,
    smooth_k: bool = True,
    params: HeadParams | None = None,
    quantize: bool = False,
    backend: Backend = "auto",
    tensor_layout: Layout = "HND",
    return_stats: bool = False,
) -> Float[Tensor, "batch q_heads n_q d_v"] | tuple[Float[Tensor, "batch q_heads n_q d_v"], AttentionStats]:
    """Attention that predicts, from q and k, which tiles matter and computes those alone.

    The first six arguments, `scale` and `enable_gqa` are those of
    `torch.nn.functional.scaled_dot_product_attention`, in its order. q_heads may be a multiple of k_heads
    (grouped queries) and n_q may differ from n_k. Inference only.

    Args:
        q: queries, in `tensor_layout`.
        k: keys, alike.
        v: values, alike.
        attn_mask: must be None. Additive and boolean masks are not supported.
        dropout_p: must be 0.
        is_causal: query r sees key c where c <= r + n_k - n_q: the last query sees the last key, as the chunk
            of a prefill with cached keys needs. torch's function aligns the first ones where n_q < n_k.
        scale: factor of the scores, d**-0.5 where None.
        enable_gqa: taken for the sake of calls written for torch's function; grouped queries are served
            whether it is set or not.
        theta: a block whose tokens' mean pairwise cosine is at most this is never skipped; in [-1, 1],
            1 makes a head dense.
        tau: share of the predicted mass to keep, in [0, 1]; None where `topk` is given.
        topk: share of the key blocks to keep, in [0, 1]. Needs tau=None.
        pv_threshold: lambda of the second filter in log2 units; None switches it off.
        attention_sink: always keep the first block of keys (the authors do, once tuned).
        block_q: queries in a block.
        block_k: keys in a block.
        smooth_k: predict from keys without their mean token.
        params: tuned parameters (`SpargeTuner`), instead of the eight arguments from `theta` to `smooth_k`.
        quantize: round Q and K to INT8 as SageAttention does.
        backend: "auto" takes the fastest that honours every option; one asked for by name runs or raises.
        tensor_layout: "HND" for (batch, heads, n, d), "NHD" for (batch, n, heads, d); the output alike.
        return_stats: also return an `AttentionStats`: which backend ran and what was skipped.

    Theta, tau, topk and pv_threshold are a number, or a tensor or sequence of one a query head.

    Returns:
        The output, or (output, stats).

    Raises:
        InputError: a mask or dropout, inputs that require a gradient, shapes, dtypes or devices that do not
            fit, options out of range, NaN or infinity, or a backend that cannot run.
    """
    if attn_mask is not None:
        raise InputError(
            "sparge_attention takes no attn_mask: its tiles are predicted without one; use is_causal, or "
            "scaled_dot_product_attention for this call"
        )
    if not isinstance(dropout_p, (int, float)) or dropout_p != 0:
        raise InputError(f"dropout_p is {dropout_p}; SpargeAttn is for inference and supports no dropout")
    _check_values(v)
    check_choice("tensor_layout", tensor_layout, get_args(Layout))
    check_flag("is_causal", is_causal)
    check_flag("enable_gqa", enable_gqa)
    check_flag("quantize", quantize)
    check_flag("return_stats", return_stats)
    if params is None:
        params = HeadParams(theta, tau, topk, pv_threshold, attention_sink, block_q, block_k, smooth_k)
    elif not _are_defaults(theta, tau, topk, pv_threshold, attention_sink, block_q, block_k, smooth_k):
        raise InputError("params already holds theta to smooth_k; leave those arguments out, or params")
    if tensor_layout == "NHD":
        q, k, v = (_swap(x) for x in (q, k, v))
    result = sparse_attention(
        q,
        k,
        v,
        is_causal=is_causal,
        scale=scale,
        quantize=quantize,
        backend=backend,
        return_stats=return_stats,
        **check_params(params).arguments(),
    )
    output, stats = result if return_stats else (result, None)
    if tensor_layout == "NHD":
        output = output.transpose(1, 2)
    return output if stats is None else (output, stats)


def check_inputs(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> None:
    """Refuse tensors that do not fit together, before any work.

    Raises:
        InputError: as `sparge_attention`, but for what takes the numbers themselves to see.
    """
    _check_values(v)
    check_flag("is_causal", is_causal)
    check_tensors(q, k, v, is_causal=is_causal)


def _check_values(v: object) -> None:
    if v is None:  # which the kernel's check takes for a call that only predicts
        raise InputError("v is None; give the values")


def _swap(x: Tensor) -> Tensor:
    # What is no such tensor is left for the kernel's checks to name.
    return x.transpose(1, 2) if isinstance(x, Tensor) and x.dim() == 4 else x


def _are_defaults(*values: object) -> bool:
    plain = HeadParams().arguments().values()
    # Defaults are plain values; arrays and the like, which compare by element, are none of them.
    return all(
        isinstance(given, (int, float, type(None))) and given == default
        for given, default in zip(values, plain, strict=True)
    )


def block_mask(
    q: Float[Tensor, "batch q_heads n_q d"],
    k: Float[Tensor, "batch k_heads n_k d"],
    params: HeadParams | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
) -> Bool[Tensor, "batch q_heads q_blocks k_blocks"]:
    """The tiles `sparge_attention` would compute with these parameters (the defaults where None)."""
    check_flag("is_causal", is_causal)
    arguments = (HeadParams() if params is None else check_params(params)).arguments()
    del arguments["pv_threshold"]  # the second filter acts later, inside the kept tiles
    return predict_block_mask(q, k, is_causal=is_causal, scale=scale, **arguments)


def dense_attention(
    q: Float[Tensor, "batch q_heads n_q d"],
    k: Float[Tensor, "batch k_heads n_k d"],
    v: Float[Tensor, "batch k_heads n_k d_v"],
    *,
    is_causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "batch q_heads n_q d_v"]:
    """What `sparge_attention` approximates, by torch's own function, with its alignment of is_causal."""
    check_inputs(q, k, v, is_causal=is_causal)
    n_q, n_k = q.shape[2], k.shape[2]
    mask = None
    if is_causal and n_q != n_k:
        mask = torch.ones(n_q, n_k, dtype=torch.bool, device=q.device).tril(n_k - n_q)
        is_causal = False
    grouped = q.shape[1] != k.shape[1]
    return scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, scale=scale, enable_gqa=grouped)
