"""The first filter with everything cached that does not change while its thresholds are tuned.

The kernel's `predict_block_mask` does in one call what is split here into what depends on the inputs
(`Prediction`), on theta as well (`Prediction.rank`) and on tau too (`Ranking.mask`); tests hold the
two equal.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hexad.core.errors import InputError
from hexad.kernels.sparse_attention.prediction import causal_tiles, diagonal_tiles, pool_blocks


@dataclass(frozen=True)
class Verdicts:
    """Blocks too varied to be judged by their mean, at one theta: always kept."""

    fix_q: Bool[Tensor, "batch heads q_blocks"]
    fix_k: Bool[Tensor, "batch heads k_blocks"]


@dataclass(frozen=True)
class Ranking:
    """The tiles of some heads in the order in which tau takes them.

    Attributes:
        rank: place of each tile in its row's descending order of predicted mass.
        mass: cumulative mass down that order.
        forced: tiles that are kept whatever tau says.
        allowed: tiles that the causal mask allows; shape (q_blocks, k_blocks).
    """

    rank: Int[Tensor, "batch heads q_blocks k_blocks"]
    mass: Float[Tensor, "batch heads q_blocks k_blocks"]
    forced: Bool[Tensor, "batch heads q_blocks k_blocks"]
    allowed: Bool[Tensor, "q_blocks k_blocks"]

    def mask(self, tau: Float[Tensor, " heads"]) -> Bool[Tensor, "batch heads q_blocks k_blocks"]:
        """The tiles kept at these values of tau, one a head."""
        limit = tau.to(self.mass)[:, None, None]
        count = (self.mass <= limit).sum(-1, keepdim=True).clamp_(min=1)
        return ((self.rank < count) | self.forced) & self.allowed

    def sparsity(self, mask: Bool[Tensor, "batch heads q_blocks k_blocks"]) -> Float[Tensor, " heads"]:
        """Share of the tiles that dense attention needs and the mask skips, of each head."""
        needed = mask.shape[0] * int(self.allowed.sum())
        return 1 - mask.sum((0, 2, 3)).double().cpu() / needed


class Prediction:
    """Pooled blocks, their self-similarity and their scores, of one attention call.

    Args:
        q, k: shapes (batch, q_heads, n_q, d) and (batch, k_heads, n_k, d).
        is_causal, scale, block_q, block_k, smooth_k: as in `predict_block_mask`.

    Raises:
        InputError: NaN or infinity in q or k.
    """

    def __init__(
        self,
        q: Float[Tensor, "batch q_heads n_q d"],
        k: Float[Tensor, "batch k_heads n_k d"],
        is_causal: bool,
        scale: float | None,
        block_q: int,
        block_k: int,
        smooth_k: bool,
    ) -> None:
        group = q.shape[1] // k.shape[1]
        pooled_q, self.similarity_q = pool_blocks(q, block_q)
        pooled_k, similarity_k = pool_blocks(k, block_k, smooth=smooth_k)
        self.similarity_k = similarity_k.repeat_interleave(group, dim=1)
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        self.scores = pooled_q @ pooled_k.repeat_interleave(group, dim=1).mT * scale
        if not self.scores.isfinite().all():
            raise InputError(
                "q or k holds NaN or infinity (or scores overflow); look for the layer that made it"
            )
        sizes = (q.shape[2], k.shape[2], block_q, block_k)
        self.allowed = torch.ones(self.scores.shape[2:], dtype=torch.bool, device=q.device)
        self.diagonal = torch.zeros_like(self.allowed)
        if is_causal:
            self.allowed = causal_tiles(*sizes, device=q.device)
            self.diagonal = diagonal_tiles(*sizes, device=q.device)
            self.scores.masked_fill_(~self.allowed, float("-inf"))

    def judge(self, theta: float) -> Verdicts:
        """Which blocks of all heads cannot be judged by their mean at this theta."""
        return Verdicts(~(self.similarity_q > theta), ~(self.similarity_k > theta))

    def same(self, a: Verdicts, b: Verdicts) -> Bool[Tensor, " heads"]:
        """Heads for which two thetas give the same verdict on every block."""
        return ((a.fix_q == b.fix_q).all(-1) & (a.fix_k == b.fix_k).all(-1)).all(0).cpu()

    def rank(self, verdicts: Verdicts, heads: Int[Tensor, " active"]) -> Ranking:
        """Sort the tiles of these heads by predicted mass."""
        fix_q, fix_k = verdicts.fix_q[:, heads, :, None], verdicts.fix_k[:, heads, None, :]
        scores = self.scores[:, heads].masked_fill(fix_k, float("-inf"))
        order = torch.softmax(scores, -1).nan_to_num_(nan=0.0).sort(dim=-1, descending=True, stable=True)
        places = torch.arange(scores.shape[-1], device=scores.device).expand_as(scores)
        rank = torch.empty_like(order.indices).scatter_(-1, order.indices, places)
        return Ranking(rank, order.values.cumsum(-1), fix_q | fix_k | self.diagonal, self.allowed)
