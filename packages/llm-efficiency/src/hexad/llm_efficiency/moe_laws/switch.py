"""A small Switch transformer (one expert of several a token), dense where there is one expert.

Pre-norm blocks of rotary causal attention and SwiGLU experts of hidden size 3d, untied embeddings, as in
"Joint MoE Scaling Laws" (arXiv 2502.05172), appendix A; its matrices are those that
`hexad.llm_efficiency.moe_laws.SwitchArch` counts. Tokens are sorted by expert and each expert multiplies
its own contiguous rows, so no token is ever dropped, in training or evaluation.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding, scaled_dot_product_attention, silu

from hexad.core.errors import InputError
from hexad.core.validation import check_count

INIT_SCALE = (
    1.0  # truncated normal of variance scale / fan-in; the paper's 0.1 trained these small models worse
)
HEAD_DIM = 16


@dataclass(frozen=True)
class SwitchConfig:
    """The shape of a model.

    Args:
        width: d, a multiple of `aspect` and of the head's 16.
        experts: E; 1 is a dense model.
        vocab: number of tokens.
        aspect: width over blocks; the paper's models have 64.
        ffn_mult: hidden size of an expert over the width.
    """

    width: int
    experts: int = 1
    vocab: int = 256
    aspect: int = 16
    ffn_mult: int = 3

    def __post_init__(self) -> None:
        for name in ("width", "experts", "vocab", "aspect", "ffn_mult"):
            check_count(name, getattr(self, name))
        for step in (self.aspect, HEAD_DIM):
            if self.width % step:
                raise InputError(f"width is {self.width}; it must be a multiple of {step}")

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return self.width // self.aspect


class _GroupedMatmul(torch.autograd.Function):
    """Rows `ends[e-1]:ends[e]` of x times matrix e of w: one product an expert, no padding."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, ends: list[int]) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.ends = ends
        out = x.new_empty(x.shape[0], w.shape[2])
        for expert, (start, stop) in enumerate(pairwise([0, *ends])):
            torch.mm(x[start:stop], w[expert], out=out[start:stop])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad,) = grads
        x, w = ctx.saved_tensors
        grad_x, grad_w = torch.empty_like(x), torch.empty_like(w)
        for expert, (start, stop) in enumerate(pairwise([0, *ctx.ends])):
            torch.mm(grad[start:stop], w[expert].T, out=grad_x[start:stop])
            torch.mm(x[start:stop].T, grad[start:stop], out=grad_w[expert])
        return grad_x, grad_w, None


def grouped_matmul(
    x: Float[Tensor, "rows k"], w: Float[Tensor, "experts k m"], ends: list[int]
) -> Float[Tensor, "rows m"]:
    """Multiply the rows of each expert by its matrix; differentiable.

    Args:
        x: rows sorted by expert.
        w: a matrix an expert.
        ends: where each expert's rows end; an expert may have none.
    """
    return _GroupedMatmul.apply(x, w, ends)


def _matrix(*shape: int) -> nn.Parameter:
    """Drawn from a truncated normal; the fan-in is the last but one dimension."""
    std = (INIT_SCALE / shape[-2]) ** 0.5
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(shape), std=std, a=-2 * std, b=2 * std))


class Experts(nn.Module):
    """The Switch layer: a router gives each token to one SwiGLU expert and scales its output.

    `forward` returns the output and the two auxiliary losses: load balance, E Σ f_e p_e (Switch Transformer,
    equation 4), which is 1 where the load is even, and the router's z-loss, the mean of logsumexp². Of one
    expert both are 0.
    """

    def __init__(self, config: SwitchConfig) -> None:
        super().__init__()
        d, hidden = config.width, config.ffn_mult * config.width
        self.experts = config.experts
        self.router = _matrix(d, config.experts) if config.experts > 1 else None
        self.rise = _matrix(config.experts, d, 2 * hidden)
        self.fall = _matrix(config.experts, hidden, d)

    def _swiglu(self, rows: Float[Tensor, "rows d"], ends: list[int]) -> Float[Tensor, "rows d"]:
        gate, value = grouped_matmul(rows, self.rise, ends).chunk(2, dim=-1)
        return grouped_matmul(silu(gate) * value, self.fall, ends)

    def forward(
        self, x: Float[Tensor, "rows d"]
    ) -> tuple[Float[Tensor, "rows d"], Float[Tensor, ""], Float[Tensor, ""]]:
        """Output and auxiliary losses."""
        if self.router is None:
            return self._swiglu(x, [x.shape[0]]), x.new_zeros(()), x.new_zeros(())
        logits = x.float() @ self.router
        shares = logits.softmax(-1)
        gate, chosen = shares.max(-1)
        order = chosen.argsort()
        counts = torch.bincount(chosen, minlength=self.experts)
        rows = self._swiglu(x[order], counts.cumsum(0).tolist())
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        balance = self.experts * (counts / len(order) * shares.mean(0)).sum()
        return rows[back] * gate[:, None], balance, logits.logsumexp(-1).square().mean()


def _rotations(length: int) -> Complex[Tensor, "n half"]:
    """The unit complex numbers by which rotary embedding turns pairs of features."""
    frequency = 10_000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angle = torch.outer(torch.arange(length), frequency)
    return torch.polar(torch.ones_like(angle), angle)


def _norm(width: int) -> nn.LayerNorm:
    return nn.LayerNorm(width, bias=False)  # not RMSNorm, which on CPUs is several operations


class Block(nn.Module):
    """Attention, then the experts, each added to the residual stream."""

    def __init__(self, config: SwitchConfig) -> None:
        super().__init__()
        d = config.width
        self.heads = d // HEAD_DIM
        self.attention_norm, self.expert_norm = _norm(d), _norm(d)
        self.qkv, self.out = _matrix(d, 3 * d), _matrix(d, d)
        self.experts = Experts(config)

    def forward(
        self, x: Float[Tensor, "batch n d"], rotations: Complex[Tensor, "n half"]
    ) -> tuple[Float[Tensor, "batch n d"], Float[Tensor, ""], Float[Tensor, ""]]:
        """The stream after the block, and the auxiliary losses of its experts."""
        batch, n, d = x.shape
        qkv = (self.attention_norm(x) @ self.qkv).view(batch, n, 3 * self.heads, HEAD_DIM).transpose(1, 2)
        qk, v = qkv[:, : 2 * self.heads], qkv[:, 2 * self.heads :]
        pairs = torch.view_as_complex(qk.unflatten(-1, (-1, 2)))
        q, k = torch.view_as_real(pairs * rotations).flatten(-2).chunk(2, dim=1)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.transpose(1, 2).reshape(batch, n, d) @ self.out
        out, balance, z = self.experts(self.expert_norm(x).view(-1, d))
        return x + out.view_as(x), balance, z


class SwitchLM(nn.Module):
    """A causal language model of Switch blocks."""

    def __init__(self, config: SwitchConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = _matrix(config.vocab, config.width)
        nn.init.normal_(self.embedding, std=config.width**-0.5)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.norm = _norm(config.width)
        self.head = _matrix(config.width, config.vocab)

    def forward(
        self, tokens: Int[Tensor, "batch n"]
    ) -> tuple[Float[Tensor, "batch n vocab"], Float[Tensor, ""], Float[Tensor, ""]]:
        """Logits, and the mean load-balance loss and z-loss of the blocks."""
        x = embedding(tokens, self.embedding)
        rotations = _rotations(tokens.shape[1])
        balances, zs = [], []
        for block in self.blocks:
            x, balance, z = block(x, rotations)
            balances.append(balance)
            zs.append(z)
        return self.norm(x) @ self.head, torch.stack(balances).mean(), torch.stack(zs).mean()
