"""The paper's diffusion transformer (DiT) for velocities, and the parts it shares with the equivariant
network.

After Cao et al., ICML 2025 (arXiv 2507.09785, section 4 and appendix) and the released code: a node is its
position, its atom features and its place in the graph; attention is biased by pairs (bond, distance);
adaptive layer norms take the time; ten learned registers stand before the atoms. The released inputs for
self-conditioning and for features of whole graphs are always zero there, and are left out here.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hexad.core.errors import InputError
from hexad.core.validation import check_range
from hexad.science_ml.avgflow.batching import EDGE_TYPES, LAPLACIAN_FEATURES, NODE_FEATURES, MoleculeBatch
from hexad.science_ml.avgflow.targets import centre


@dataclass(frozen=True)
class ConformerFlowConfig:
    """Sizes of `ConformerFlow`; the defaults are those of the released 52M network.

    Args:
        features: of a node.
        laplacian: eigenvectors of the graph a node.
        edge_types: kinds of pairs.
        layers: blocks.
        heads: of attention; divides `width`.
        width: numbers a node, and of the condition.
        pairs: numbers a pair of atoms (the released network embeds bonds in 126).
        registers: learned tokens before the atoms.
        hops: bonds between two atoms that are told apart; 0, as released, tells only bonded ones apart.
    """

    features: int = NODE_FEATURES
    laplacian: int = LAPLACIAN_FEATURES
    edge_types: int = EDGE_TYPES
    layers: int = 8
    heads: int = 8
    width: int = 512
    pairs: int = 126
    registers: int = 10
    hops: int = 0

    def __post_init__(self) -> None:
        for name in ("features", "edge_types", "layers", "heads", "width", "pairs"):
            check_range(name, getattr(self, name), 1)
        for name in ("laplacian", "registers", "hops"):
            check_range(name, getattr(self, name), 0)
        if self.width % self.heads or self.width % 2:
            raise InputError(f"width {self.width} must be even and a multiple of the {self.heads} heads")


class SwiGLU(nn.Module):
    """W3 (silu(W1 x) * W2 x), its output zero at the start so that a residual block begins as the
    identity."""

    def __init__(self, inputs: int, outputs: int, hidden: int) -> None:
        super().__init__()
        self.open = nn.Linear(inputs, 2 * hidden)
        self.close = nn.Linear(hidden, outputs)
        nn.init.zeros_(self.close.weight)
        nn.init.zeros_(self.close.bias)

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        """The gated two-layer network."""
        gate, value = self.open(x).chunk(2, dim=-1)
        return self.close(functional.silu(gate) * value)


class TimeEmbedding(nn.Module):
    """Sinusoids of 2000 t, a linear map and two residual transitions (the released network's condition)."""

    frequencies: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        frequencies = torch.exp(-math.log(10_000) * torch.arange(width // 2) / (width // 2))
        self.register_buffer("frequencies", 2000 * frequencies, persistent=False)
        self.project = nn.Linear(width, width)
        self.first, self.second = (SwiGLU(width, width, 2 * width) for _ in range(2))

    def forward(self, t: Float[Tensor, " batch"]) -> Float[Tensor, "batch width"]:
        """The condition of each molecule."""
        angles = t.unsqueeze(-1) * self.frequencies
        hidden = self.project(torch.cat([angles.sin(), angles.cos()], dim=-1))
        hidden = hidden + self.first(hidden)
        return hidden + self.second(hidden)


class AdaptiveNorm(nn.Module):
    """sigmoid(W LN c) * LN x + W' LN c."""

    def __init__(self, width: int, condition: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.norm_condition = nn.LayerNorm(condition)
        self.scale = nn.Linear(condition, width)
        self.shift = nn.Linear(condition, width, bias=False)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Normalised x, scaled and shifted by the condition."""
        condition = self.norm_condition(condition)
        return torch.sigmoid(self.scale(condition)) * self.norm(x) + self.shift(condition)


class OutputScale(nn.Module):
    """sigmoid(W c - 2) * W' x with W' = 0 at the start: every block begins as the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, width)
        nn.init.zeros_(self.gate.weight)
        nn.init.constant_(self.gate.bias, -2.0)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """The gated change of a block."""
        return torch.sigmoid(self.gate(condition)) * x


class TransformerBlock(nn.Module):
    """Pair-biased, gated attention and a SwiGLU transition, both in adaptive norms."""

    def __init__(self, config: ConformerFlowConfig) -> None:
        super().__init__()
        self.heads = config.heads
        width, head = config.width, config.width // config.heads
        self.attention_norm, self.transition_norm = (AdaptiveNorm(width, width) for _ in range(2))
        self.project = nn.Linear(width, 3 * width, bias=False)
        self.norm_q, self.norm_k = nn.LayerNorm(head), nn.LayerNorm(head)
        self.norm_pair = nn.LayerNorm(config.pairs)
        self.bias = nn.Linear(config.pairs, config.heads, bias=False)
        self.gate = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        self.attention_scale, self.transition_scale = (OutputScale(width) for _ in range(2))
        self.transition = SwiGLU(width, width, 4 * width)

    def forward(self, x: Tensor, condition: Tensor, pair: Tensor, blocked: Tensor) -> Tensor:
        """Tokens (batch, m, width), condition (batch, 1, width), pairs (batch, m, m, pairs)."""
        b, m, width = x.shape
        normed = self.attention_norm(x, condition)
        q, k, v = self.project(normed).view(b, m, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        bias = self.bias(self.norm_pair(pair)).permute(0, 3, 1, 2) + blocked
        mixed = functional.scaled_dot_product_attention(
            self.norm_q(q), self.norm_k(k), v, attn_mask=bias.to(q.dtype)
        )
        mixed = mixed.transpose(1, 2).reshape(b, m, width) * torch.sigmoid(self.gate(normed))
        x = x + self.attention_scale(self.out(mixed), condition)
        changed = self.transition(self.transition_norm(x, condition))
        return x + self.transition_scale(changed, condition)


class ConformerFlow(nn.Module):
    """v(x, t), the DiT of the paper. It is not equivariant: train it on `random_rotation` or `ode`."""

    def __init__(self, config: ConformerFlowConfig = ConformerFlowConfig()) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.nodes = nn.Linear(3 + config.features + config.laplacian, width)
        self.time = TimeEmbedding(width)
        # One number of the pair is the distance.
        self.edges = nn.Embedding(config.edge_types, config.pairs - 1)
        self.hops = nn.Embedding(config.hops + 2, config.pairs - 1) if config.hops else None
        self.pair_norm = AdaptiveNorm(config.pairs, width)
        self.registers = nn.Parameter(0.02 * torch.randn(config.registers, width))
        self.blocks = nn.ModuleList(TransformerBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 3, bias=False)
        nn.init.zeros_(self.out.weight)

    def forward(
        self, x: Float[Tensor, "batch n 3"], t: Float[Tensor, " batch"], batch: MoleculeBatch
    ) -> Float[Tensor, "batch n 3"]:
        """Velocity of centred positions x (Angstrom) at times t; centred, zero where the mask is false."""
        mask, registers = batch.mask, self.config.registers
        x = centre(x, mask)
        laplacian = batch.laplacian[..., : self.config.laplacian]
        tokens = self.nodes(torch.cat([x, batch.node_features, laplacian], dim=-1))
        condition = self.time(t).unsqueeze(1)
        edges = self.edges(batch.edge_types)
        if self.hops is not None:
            edges = edges + self.hops(graph_distances(batch.edge_types, self.config.hops))
        distance = ((x.unsqueeze(1) - x.unsqueeze(2)).square().sum(-1, keepdim=True) + 1e-8).sqrt()
        pair = self.pair_norm(torch.cat([edges, distance], dim=-1), condition.unsqueeze(1))
        pair = functional.pad(pair, (0, 0, registers, 0, registers, 0))
        tokens = torch.cat([self.registers.to(tokens.dtype).expand(len(x), -1, -1), tokens], dim=1)
        seen = functional.pad(mask, (registers, 0), value=True)
        blocked = torch.zeros_like(seen, dtype=x.dtype).masked_fill(~seen, -torch.inf)[:, None, None]
        for block in self.blocks:
            tokens = block(tokens, condition, pair, blocked)
        return centre(self.out(self.norm(tokens[:, registers:])).to(x.dtype), mask)


def graph_distances(edge_types: Int[Tensor, "batch n n"], hops: int) -> Int[Tensor, "batch n n"]:
    """Bonds on the shortest path between atoms: 0 to itself, 1 to `hops`, and `hops + 1` for all beyond.

    Types 1 to 4 are bonds, and 7 to 10 (a stereocentre's neighbours) as well; 5 and 6 are not.
    """
    n = edge_types.shape[-1]
    bonded = ((edge_types >= 1) & (edge_types <= 4)) | (edge_types >= 7)
    step = bonded.float() + torch.eye(n, device=edge_types.device)
    reached = torch.eye(n, device=edge_types.device).expand_as(step)
    # Each atom is one hop nearer for every power of the adjacency that reaches it.
    distance = torch.full_like(edge_types, hops + 1)
    distance -= reached.long()
    for _ in range(hops):
        reached = (reached @ step > 0).float()
        distance -= reached.long()
    return distance
