"""What QuEST is compared with: AbsMax scales with the straight-through estimator, and learned step sizes.

Both round to the same mid-rise grids, so that scale and gradient are all that differs.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hexad.llm_efficiency.quest.config import QuestConfig
from hexad.llm_efficiency.quest.layer import QuestLinear
from hexad.llm_efficiency.quest.quantizer import EPSILON, Rule


@dataclass(frozen=True)
class AbsMaxRule(Rule):
    """The grid ends at a row's largest magnitude."""

    def row_scale(self, x: Float[Tensor, "*rows k"]) -> Float[Tensor, "*rows 1"]:
        """a = max |x| of each row."""
        return x.abs().amax(-1, keepdim=True).add_(EPSILON)


def absmax_linear(linear: nn.Linear, bits: int) -> QuestLinear:
    """AbsMax scales a row and a token, no Hadamard transform, every gradient passed straight through."""
    layer = QuestLinear.from_linear(linear, QuestConfig(bits, bits, block=1, trust="none"))
    for name in ("weight_rule", "activation_rule"):
        rule = getattr(layer, name)
        setattr(layer, name, AbsMaxRule(rule.grid, rule.alpha, "none"))
    return layer


class _LearnedStep(torch.autograd.Function):
    """v_q = (round(clamp(v / s) + 1/2) - 1/2) s with LSQ's gradient to the step s (its equation 3).

    Within the range dv_q/ds = v_q / s - v / s, beyond it +-(n - 1) / 2; to v the gradient passes within the
    range alone. The step's gradient is scaled by 1 / sqrt(N (n - 1) / 2) (its section 2.2).
    """

    @staticmethod
    def forward(
        ctx: Any, v: Float[Tensor, "rows k"], step: Float[Tensor, "#rows 1"], top: int
    ) -> Float[Tensor, "rows k"]:
        scaled = v / step
        inside = scaled.abs() <= top / 2
        rounded = scaled.clamp(-top / 2, top / 2).add_(0.5).round_().sub_(0.5)
        # A clamped value on the last level: round((n - 1) / 2 + 1/2) - 1/2 = (n - 1) / 2.
        ctx.save_for_backward(inside, torch.where(inside, rounded - scaled, rounded), step)
        ctx.top = top
        return rounded * step

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Float[Tensor, "rows k"]) -> tuple[Tensor, Tensor, None]:
        inside, slope, step = ctx.saved_tensors
        product = g * slope
        g_step = product.sum(-1, keepdim=True) if step.shape[0] > 1 else product.sum().reshape(1, 1)
        count = product.numel() // step.numel()
        return g * inside, g_step / math.sqrt(count * ctx.top / 2), None


class LSQLinear(nn.Linear):
    """Learned step size quantisation (Esser et al., ICLR 2020, arXiv 1902.08153) of weights and activations.

    A step for each output channel and one for the activations, initialised as the paper says from the mean
    magnitude, the activations' from the first batch. The steps are learned in the logarithm: under AdamW,
    whose updates have the size of the learning rate, a plain step of a hundredth soon turns negative.
    """

    def __init__(self, linear: nn.Linear, bits: int) -> None:
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        self.weight, self.bias, self.top = linear.weight, linear.bias, 2**bits - 1
        self.log_w_step = nn.Parameter(self._first_step(linear.weight.detach(), rows=True).log())
        self.log_a_step = nn.Parameter(torch.zeros(1, 1))
        self.started: Tensor
        self.register_buffer("started", torch.zeros((), dtype=torch.bool))

    def _first_step(self, v: Float[Tensor, "rows k"], *, rows: bool) -> Float[Tensor, "#rows 1"]:
        """2 mean|v| / sqrt(largest level), section 2.1; at one bit the levels are +-mean|v|."""
        mean = v.abs().mean(-1, keepdim=True) if rows else v.abs().mean().reshape(1, 1)
        return (2 * mean / math.sqrt(self.top / 2 if self.top > 1 else 1)).clamp_min(1e-8)

    def forward(self, input: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch outputs"]:
        """y = Q(x) Q(W)^T + bias."""
        x = input.reshape(-1, self.in_features)
        if self.training and not bool(self.started):
            with torch.no_grad():
                self.log_a_step.copy_(self._first_step(x, rows=False).log())
                self.started.fill_(True)
        x_q = _LearnedStep.apply(x, self.log_a_step.exp(), self.top)
        w_q = _LearnedStep.apply(self.weight, self.log_w_step.exp(), self.top)
        y = nn.functional.linear(x_q, w_q, self.bias)
        return y.reshape(*input.shape[:-1], self.out_features)
