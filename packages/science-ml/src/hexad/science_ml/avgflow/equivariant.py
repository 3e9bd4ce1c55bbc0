"""A velocity network that turns with its input: SO(3)-equivariant, translation-invariant, and it knows hands.

The paper's second architecture is equivariant too (NequIP, section 4). This one is built for small budgets:
attention over all pairs of atoms, biased by bond, distance in the graph and distance in space, whose weights
move scalars and vectors alike (after TorchMD-Net, Thoelke and De Fabritiis, ICLR 2022, and PaiNN, Schuett et
al., ICML 2021). Vectors start as positions; cross products of vectors, and the signed volume at each
stereocentre, tell a molecule from its mirror image, which scalar products alone cannot.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from hexad.core.errors import InputError
from hexad.core.validation import check_range
from hexad.science_ml.avgflow.batching import EDGE_TYPES, NODE_FEATURES, MoleculeBatch
from hexad.science_ml.avgflow.network import SwiGLU, TimeEmbedding, graph_distances
from hexad.science_ml.avgflow.targets import centre

FIRST_NEIGHBOUR = 7


@dataclass(frozen=True)
class EquivariantFlowConfig:
    """Sizes of `EquivariantFlow`.

    Args:
        features: of a node.
        edge_types: kinds of pairs.
        layers: blocks.
        heads: of attention; divides `width` and `vectors`.
        width: scalars an atom.
        vectors: vectors an atom.
        pairs: numbers a pair of atoms.
        radial: Gaussians on the distance, up to `cutoff` Angstrom.
        cutoff: beyond it distances look alike.
        hops: bonds between two atoms that are told apart.
    """

    features: int = NODE_FEATURES
    edge_types: int = EDGE_TYPES
    layers: int = 6
    heads: int = 8
    width: int = 128
    vectors: int = 32
    pairs: int = 64
    radial: int = 32
    cutoff: float = 12.0
    hops: int = 6

    def __post_init__(self) -> None:
        for name in (
            "features",
            "edge_types",
            "layers",
            "heads",
            "width",
            "vectors",
            "pairs",
            "radial",
            "hops",
        ):
            check_range(name, getattr(self, name), 1)
        check_range("cutoff", self.cutoff, 0, low_open=True)
        for name in ("width", "vectors"):
            if getattr(self, name) % self.heads:
                raise InputError(f"{name} {getattr(self, name)} is no multiple of the {self.heads} heads")


class EquivariantFlow(nn.Module):
    """v(x, t) with v(x Q) = v(x) Q for every rotation Q, but not for reflections."""

    centres: Tensor

    def __init__(self, config: EquivariantFlowConfig = EquivariantFlowConfig()) -> None:
        super().__init__()
        self.config = config
        width, pairs = config.width, config.pairs
        self.nodes = nn.Linear(config.features, width)
        self.time = TimeEmbedding(width)
        self.volume = nn.Linear(1, width, bias=False)
        self.edges = nn.Embedding(config.edge_types, pairs)
        self.hops = nn.Embedding(config.hops + 2, pairs)
        self.radial = nn.Linear(config.radial, pairs)
        self.ends = nn.Linear(config.features, 2 * pairs)
        self.pair_time = nn.Linear(width, pairs)
        self.pair = nn.Sequential(nn.SiLU(), nn.Linear(pairs, pairs), nn.SiLU())
        self.start = nn.Linear(2, config.vectors, bias=False)
        self.blocks = nn.ModuleList(EquivariantBlock(config) for _ in range(config.layers))
        self.last = nn.LayerNorm(width, elementwise_affine=False)
        self.gate = nn.Linear(width, config.vectors)
        self.out = nn.Linear(config.vectors, 1, bias=False)
        nn.init.zeros_(self.out.weight)
        self.register_buffer("centres", torch.linspace(0, config.cutoff, config.radial), persistent=False)

    def forward(
        self, x: Float[Tensor, "batch n 3"], t: Float[Tensor, " batch"], batch: MoleculeBatch
    ) -> Float[Tensor, "batch n 3"]:
        """Velocity of centred positions x (Angstrom) at times t; centred, zero where the mask is false."""
        mask = batch.mask
        x = centre(x, mask)
        nodes, edges = batch.node_features, batch.edge_types
        condition = self.time(t)
        with torch.autocast(x.device.type, enabled=False):
            hands, volume = handedness(x, edges)
            vectors = self.start(torch.stack([x, hands], dim=-1))
        scalars = self.nodes(nodes) + self.volume(torch.tanh(volume).unsqueeze(-1))
        offsets = x.unsqueeze(1) - x.unsqueeze(2)  # [b, i, j] points from i to j
        distance = (offsets.square().sum(-1) + 1e-8).sqrt()
        spread = self.config.cutoff / self.config.radial
        steps = (distance.unsqueeze(-1) - self.centres) / spread
        # Numbers below exp(-30) would be denormal, which processors handle fifty times slower.
        radial = torch.exp((-0.5 * steps.square()).clamp_min(-30))
        left, right = self.ends(nodes).chunk(2, dim=-1)
        hops = graph_distances(edges, self.config.hops)
        pair = (
            self.edges(edges)
            + self.hops(hops)
            + self.radial(radial)
            + (left.unsqueeze(2) + right.unsqueeze(1))
            + self.pair_time(condition)[:, None, None]
        )
        # Pairs stay as they are from block to block, so one product gives the biases of all blocks.
        makers = [block.get_submodule("bias") for block in self.blocks]
        weight, offset = (
            torch.cat([getattr(maker, name) for maker in makers]) for name in ("weight", "bias")
        )
        biases = functional.linear(self.pair(pair), weight, offset).permute(0, 3, 1, 2).contiguous()
        closeness = (mask.unsqueeze(1) / (1 + distance)).unsqueeze(1)
        for block, bias in zip(self.blocks, biases.chunk(len(self.blocks), dim=1), strict=True):
            scalars, vectors = block(scalars, vectors, x, condition, bias, closeness, mask)
        gated = vectors * self.gate(self.last(scalars)).unsqueeze(2)
        with torch.autocast(x.device.type, enabled=False):
            velocity = self.out(gated).squeeze(-1)
        return centre(velocity.to(x.dtype), mask)


class EquivariantBlock(nn.Module):
    """Attention that gathers scalars, vectors and directions; then a mixing of scalars and vectors."""

    def __init__(self, config: EquivariantFlowConfig) -> None:
        super().__init__()
        self.heads = config.heads
        width, vectors = config.width, config.vectors
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulate = nn.Linear(width, 4 * width)
        self.project = nn.Linear(width, 5 * width)
        self.bias = nn.Linear(config.pairs, 3 * config.heads)
        self.gather = nn.Linear(width, width)
        self.collect = nn.Linear(config.heads + vectors, vectors, bias=False)
        self.views = nn.Linear(vectors, 2 * vectors, bias=False)
        self.mix = SwiGLU(width + 2 * vectors, width + 2 * vectors, hidden=3 * width)
        nn.init.zeros_(self.modulate.weight)
        nn.init.zeros_(self.modulate.bias)

    def forward(
        self,
        scalars: Tensor,
        vectors: Tensor,
        x: Tensor,
        condition: Tensor,
        biases: Tensor,
        closeness: Tensor,
        mask: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """One round: scalars (batch, n, width), vectors (batch, n, 3, c), biases (batch, 3 heads, n, n).

        Under autocast only products of scalars are rounded; positions and vectors stay as precise as x.
        """
        b, n, width = scalars.shape
        scale1, shift1, scale2, shift2 = self.modulate(condition).unsqueeze(1).chunk(4, dim=-1)
        normed = self.norm(scalars) * (1 + scale1) + shift1
        q, k, v, q2, k2 = (
            self.project(normed).view(b, n, 5, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        )
        bias, push, gain = biases.chunk(3, dim=1)
        scale = q.shape[-1] ** -0.5
        logits = (q @ k.mT) * scale + bias
        weights = logits.to(x.dtype).masked_fill(~mask[:, None, None], -torch.inf).softmax(dim=-1)
        gathered = (weights.to(v.dtype) @ v).transpose(1, 2).reshape(b, n, width)
        scalars = scalars + self.gather(gathered)
        # Signed weights push and pull along the directions between atoms; bfloat16 would blur the positions.
        signed = (push + (q2 @ k2.mT) * scale * gain).to(x.dtype) * closeness
        with torch.autocast(x.device.type, enabled=False):
            pulls = signed @ x.unsqueeze(1) - signed.sum(-1, keepdim=True) * x.unsqueeze(1)
            split = vectors.view(b, n, 3, self.heads, -1).permute(0, 3, 1, 2, 4)
            carried = (weights @ split.reshape(b, self.heads, n, -1)).view(b, self.heads, n, 3, -1)
            carried = carried.permute(0, 2, 3, 1, 4).reshape(b, n, 3, -1)
            vectors = vectors + self.collect(torch.cat([pulls.permute(0, 2, 3, 1), carried], dim=-1))
            # Products of vectors feed back into them; without a norm, that can run away.
            size = vectors.square().sum(2, keepdim=True).mean(-1, keepdim=True)
            first, second = self.views(vectors * (1 + size).rsqrt()).chunk(2, dim=-1)
            inner = (first * second).sum(2)
            length = (first.square().sum(2) + 1e-8).sqrt()
        seen = torch.cat([inner * (1 + inner.abs()).rsqrt(), length], dim=-1)
        normed = self.norm(scalars) * (1 + scale2) + shift2
        change, gates = self.mix(torch.cat([normed, seen.to(normed.dtype)], dim=-1)).split(
            [width, 2 * second.shape[-1]], dim=-1
        )
        along, across = gates.to(x.dtype).unsqueeze(2).chunk(2, dim=-1)
        turned = cross(first, second) / (1 + length).unsqueeze(2)
        return scalars + change, vectors + along * second + across * turned


def cross(a: Float[Tensor, "*batch 3 c"], b: Float[Tensor, "*batch 3 c"]) -> Float[Tensor, "*batch 3 c"]:
    """The cross product along the last axis but one (seven times faster than torch.linalg.cross on a CPU)."""
    (ax, ay, az), (bx, by, bz) = a.unbind(-2), b.unbind(-2)
    return torch.stack([ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx], dim=-2)


def handedness(
    x: Float[Tensor, "batch n 3"], edge_types: Tensor
) -> tuple[Float[Tensor, "batch n 3"], Float[Tensor, "batch n"]]:
    """How stereocentres stand: a vector an atom that turns its centre right, and each centre's signed volume.

    A centre sees its neighbours 1 to 4 as edge types 7 to 10, in an order that turns the same way about every
    centre. The signed volume (a - d) x (b - d) . (c - d) of their positions then has one sign in all right
    conformers; its gradient says how each neighbour must move. A lone pair's place is taken by the centre.
    """
    places = [(edge_types == FIRST_NEIGHBOUR + place).to(x.dtype) for place in range(4)]
    positions = [place @ x for place in places]
    missing = 1 - places[3].sum(-1, keepdim=True)
    d = positions[3] + missing * x
    is_centre = places[0].sum(-1, keepdim=True)
    a, b, c = ((position - d) * is_centre for position in positions[:3])
    normals = [
        torch.linalg.cross(b, c, dim=-1),
        torch.linalg.cross(c, a, dim=-1),
        torch.linalg.cross(a, b, dim=-1),
    ]
    volume = (a * normals[0]).sum(-1)
    last = -(normals[0] + normals[1] + normals[2])
    gradient = sum(place.mT @ normal for place, normal in zip(places, [*normals, last], strict=True))
    gradient = gradient + missing * last
    # Products of two lengths; the square root keeps them in the range of positions.
    size = (gradient.square().sum(-1, keepdim=True) + 1e-8).sqrt()
    return gradient / (1 + size).sqrt(), volume
