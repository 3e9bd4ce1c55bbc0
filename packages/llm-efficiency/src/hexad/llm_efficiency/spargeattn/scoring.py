"""How far sparse attention is from dense attention, and how much it skips, by head."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hexad.llm_efficiency.spargeattn.attention import Backend, block_mask, dense_attention, sparge_attention
from hexad.llm_efficiency.spargeattn.calls import AttentionCall, check_call
from hexad.llm_efficiency.spargeattn.params import HeadParams, check_params

TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class HeadScores:
    """How parameters do on one input: relative L1 error and share of tiles skipped of each head."""

    rel_l1: Float[Tensor, " heads"]
    sparsity: Float[Tensor, " heads"]


@torch.no_grad()
def score(
    params: HeadParams, call: AttentionCall, *, backend: Backend = "auto", quantize: bool = False
) -> HeadScores:
    """Relative L1 error to dense attention, and share of the needed tiles skipped, of each head on a call.

    The share counts the first filter. Use calls that the tuner has not seen.
    """
    check_params(params)
    check_call(call)
    q, k, v, is_causal, scale = call.q, call.k, call.v, call.is_causal, call.scale
    dense = dense_attention(q, k, v, is_causal=is_causal, scale=scale)
    output = sparge_attention(
        q, k, v, is_causal=is_causal, scale=scale, params=params, backend=backend, quantize=quantize
    )
    kept = block_mask(q, k, params, is_causal=is_causal, scale=scale)
    everything = HeadParams(theta=1.0, block_q=params.block_q, block_k=params.block_k)
    needed = block_mask(q, k, everything, is_causal=is_causal, scale=scale)
    return HeadScores(relative_l1(output, dense).cpu(), 1 - tiles_kept(kept) / tiles_kept(needed))


def relative_l1(
    output: Float[Tensor, "batch heads n d"], dense: Float[Tensor, "batch heads n d"]
) -> Float[Tensor, " heads"]:
    """sum |O - O'| / sum |O| of each head, in float64."""
    return l1_norm(widened(output) - widened(dense)) / l1_norm(widened(dense)).clamp_min(TINY)


def widened(x: Tensor) -> Tensor:
    """Half precision as float32, so that a difference is not rounded to half precision again."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def l1_norm(x: Float[Tensor, "batch heads n d"]) -> Float[Tensor, " heads"]:
    """sum |x| of each head, in float64."""
    # The few numbers of a row add up well in their own dtype, and only the rows need float64.
    return x.abs().sum(3).double().sum((0, 2))


def tiles_kept(mask: Bool[Tensor, "batch heads q_blocks k_blocks"]) -> Int[Tensor, " heads"]:
    """Number of kept tiles of each head, over the batch."""
    return mask.sum((0, 2, 3)).cpu()
