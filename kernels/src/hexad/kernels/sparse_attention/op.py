"""The two operators under the public functions, registered with torch.library in the namespace `hexad`.

Both have fake implementations, so a model that calls them traces whole under
torch.compile(fullgraph=True). Their arguments come checked in shape and dtype (see `functional`); what
takes the numbers themselves to check is checked here, before any kernel is launched.
"""

from typing import Any

import torch
from torch import Tensor

from hexad.kernels.sparse_attention import checks
from hexad.kernels.sparse_attention.backends import run
from hexad.kernels.sparse_attention.prediction import block_mask_from_inputs, causal_tiles, num_blocks


@torch.library.custom_op("hexad::predict_block_mask", mutates_args=())
def predict_block_mask(
    q: Tensor,
    k: Tensor,
    theta: Tensor,
    tau: Tensor | None,
    topk: Tensor | None,
    is_causal: bool,
    scale: float,
    attention_sink: bool,
    force_diagonal: bool,
    block_q: int,
    block_k: int,
    smooth_k: bool,
    native: bool,
) -> Tensor:
    """See `functional.predict_block_mask`; theta, tau and topk carry one value a query head."""
    n_q, n_k = q.shape[2], k.shape[2]
    theta = theta.cpu()
    checks.check_range("theta", theta, -1.0, 1.0)
    if tau is not None:
        checks.check_range("tau", tau, 0.0, 1.0)
    if topk is not None:
        checks.check_range("topk", topk, 0.0, 1.0)
        # Counted in float64, as int(topk * k_blocks) would be in Python.
        topk = (topk.cpu() * num_blocks(n_k, block_k)).to(torch.int64)
    if bool((theta >= 1).all()):
        checks.check_finite(q=q, k=k)
        shape = (*q.shape[:2], num_blocks(n_q, block_q), num_blocks(n_k, block_k))
        mask = torch.ones(shape, dtype=torch.bool, device=q.device)
        return mask & causal_tiles(n_q, n_k, block_q, block_k, q.device) if is_causal else mask
    arguments: dict[str, Any] = {
        "theta": theta.to(q.device, torch.float32),
        "tau": None if tau is None else tau.to(q.device, torch.float32),
        "topk": None if topk is None else topk.to(q.device),
        "is_causal": is_causal,
        "scale": scale,
        "attention_sink": attention_sink,
        "force_diagonal": force_diagonal,
        "block_q": block_q,
        "block_k": block_k,
        "smooth_k": smooth_k,
    }
    if native:
        from hexad.kernels.sparse_attention import cpu

        return cpu.block_mask_from_inputs(q, k, **arguments)  # looks for NaN and infinity itself
    mask, finite = block_mask_from_inputs(q, k, **arguments)
    if not bool(finite):
        checks.check_finite(q=q, k=k)
    return mask


@predict_block_mask.register_fake
def _(
    q,
    k,
    theta,
    tau,
    topk,
    is_causal,
    scale,
    attention_sink,
    force_diagonal,
    block_q,
    block_k,
    smooth_k,
    native,
):
    shape = (q.shape[0], q.shape[1], num_blocks(q.shape[2], block_q), num_blocks(k.shape[2], block_k))
    return q.new_empty(shape, dtype=torch.bool)


@torch.library.custom_op("hexad::block_sparse_attention", mutates_args=())
def block_sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_mask: Tensor,
    pv_threshold: Tensor | None,
    is_causal: bool,
    scale: float,
    block_q: int,
    block_k: int,
    quantize: bool,
    backend: str,
    q_and_k_checked: bool,
) -> tuple[Tensor, Tensor]:
    """Returns the output, and the counts of kept tiles and of those left out by the second filter."""
    if backend != "native":  # which looks for NaN and infinity itself, while it copies its operands
        checks.check_finite(**({"v": v} if q_and_k_checked else {"q": q, "k": k, "v": v}))
    n_q, n_k = q.shape[2], k.shape[2]
    if is_causal:
        block_mask = block_mask & causal_tiles(n_q, n_k, block_q, block_k, q.device)
    checks.check_rows(block_mask, is_causal=is_causal, n_q=n_q, n_k=n_k, block_q=block_q, block_k=block_k)
    if pv_threshold is not None:
        checks.check_range("pv_threshold", pv_threshold, 0.0, float("inf"))
        pv_threshold = pv_threshold.to(q.device, torch.float32)
    out, skipped = run(
        backend,
        q,
        k,
        v,
        block_mask,
        is_causal=is_causal,
        scale=scale,
        block_q=block_q,
        block_k=block_k,
        pv_threshold=pv_threshold,
        quantize=quantize,
    )
    if backend != "native":
        checks.check_output(out)
    counts = block_mask.sum().expand(2).clone()
    counts[1] = skipped
    return out, counts


@block_sparse_attention.register_fake
def _(
    q, k, v, block_mask, pv_threshold, is_causal, scale, block_q, block_k, quantize, backend, q_and_k_checked
):
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(2, dtype=torch.int64)
