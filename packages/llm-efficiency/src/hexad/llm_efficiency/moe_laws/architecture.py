"""Parameter, cache and FLOP counts of an architecture, as functions of its width and number of experts.

Source: "Joint MoE Scaling Laws" (arXiv 2502.05172), appendix on model counts. Widths may be real numbers
here, so that plans can be optimised; `step` says which widths can be built.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from hexad.core.validation import check_count


@runtime_checkable
class Architecture(Protocol):
    """What plans need to know of an architecture; write your own for shared experts, GQA and the like.

    All counts must grow with `width`; `step` is the smallest width, and the widths that can be built are its
    multiples.
    """

    @property
    def step(self) -> int:
        """The smallest width and the grid of buildable widths."""
        ...

    def active(self, width: float, experts: float) -> float:
        """Parameters that a token passes through, embedding and unembedding included."""
        ...

    def total(self, width: float, experts: float) -> float:
        """Parameters that lie in memory."""
        ...

    def cache(self, width: float, experts: float, tokens: float) -> float:
        """Elements of the key-value cache of `tokens` tokens."""
        ...

    def train_flops(self, width: float, experts: float) -> float:
        """FLOPs of a training token; routing, or a cost of your own, goes in here."""
        ...

    def inference_flops(self, width: float, experts: float) -> float:
        """FLOPs of a token at inference."""
        ...


@dataclass(frozen=True)
class SwitchArch:
    """The paper's decoder: SwiGLU experts in every block, one active, as many blocks and heads as d/64.

    N_act = 2 d V + (4 + 3 f) b d², N_total = 2 d V + (4 + 3 f E) b d² with b = d / aspect blocks; the
    cache holds 2 T b d elements. Routers and norms are not counted.

    Args:
        vocab: V; GPT-2's by default.
        ffn_mult: f, hidden size of an expert over the width.
        aspect: width over blocks.
    """

    vocab: int = 50_257
    ffn_mult: int = 3
    aspect: int = 64

    def __post_init__(self) -> None:
        for name in ("vocab", "ffn_mult", "aspect"):
            check_count(name, getattr(self, name))

    @property
    def step(self) -> int:
        """One block more."""
        return self.aspect

    def _parameters(self, width: float, ffns: float) -> float:
        blocks = width / self.aspect
        return 2 * width * self.vocab + (4 + 3 * self.ffn_mult * ffns) * blocks * width**2

    def active(self, width: float, experts: float = 1) -> float:
        """N_act; independent of the number of experts."""
        return self._parameters(width, 1)

    def total(self, width: float, experts: float = 1) -> float:
        """N_total."""
        return self._parameters(width, experts)

    def active_without_embedding(self, width: float) -> float:
        """N_act less embedding and unembedding, of which `learning_rate` is a function."""
        return self._parameters(width, 1) - 2 * width * self.vocab

    def cache(self, width: float, experts: float, tokens: float) -> float:
        """Keys and values of all blocks."""
        return 2 * tokens * width / self.aspect * width

    def train_flops(self, width: float, experts: float) -> float:
        """6 N_act."""
        return 6 * self.active(width)

    def inference_flops(self, width: float, experts: float) -> float:
        """2 N_act."""
        return 2 * self.active(width)
