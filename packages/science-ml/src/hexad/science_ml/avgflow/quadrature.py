"""Bessel functions on the nodes of a tanh-sinh rule, from a table: a tenth of the time of evaluating them.

The integrals of the matrix Fisher distribution need f(a x) at all nodes x for each a, with f = I0e and its
slope. One row of a table holds f(a x) for one a; rows lie evenly in u = asinh(a), where f is so smooth that
ten neighbouring rows interpolate it to rounding: |f| <= 1 in the strip |Im u| < pi / 2, and rows are 1/48
apart.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

STEP = 1 / 48
TAPS = 10
LARGEST = 1e12
"""Of the table; beyond it the functions are evaluated."""


@dataclass(frozen=True)
class Rule:
    """A tanh-sinh rule on [0, 1] and the table for it, float64.

    Attributes:
        x: nodes, from 0 to 1.
        y: 1 - x, which cannot be had from x near 1; the rule is symmetric, so it is x turned round.
        weights: of the nodes.
        table: I0e(a x), then its slope, for each a.
        lagrange: monomials of the place between rows to the weights of the rows.
    """

    x: Float[Tensor, " nodes"]
    y: Float[Tensor, " nodes"]
    weights: Float[Tensor, " nodes"]
    table: Float[Tensor, "rows two_nodes"]
    lagrange: Float[Tensor, "taps taps"]

    def bessel(self, a: Float[Tensor, " k"]) -> tuple[Float[Tensor, "k nodes"], Float[Tensor, "k nodes"]]:
        """I0e(a x) and its slope (I1e - I0e)(a x) at all nodes, for a >= 0."""
        if bool((a > LARGEST).any()):
            return evaluate(a.unsqueeze(-1) * self.x)
        place = torch.asinh(a) / STEP
        first = place.floor()
        powers = (place - first - 0.5).unsqueeze(-1) ** torch.arange(TAPS, device=a.device)
        rows = first.long().unsqueeze(-1) + torch.arange(TAPS, device=a.device)
        found = torch.nn.functional.embedding_bag(
            rows, self.table, per_sample_weights=powers @ self.lagrange, mode="sum"
        )
        return found.chunk(2, dim=-1)  # ty: ignore[invalid-explicit-return]


def evaluate(z: Float[Tensor, "..."]) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """exp(-z) I0(z) and its derivative exp(-z) (I1(z) - I0(z)), without the absolute value of I0e."""
    growth = torch.exp(-2 * z.clamp_max(0))  # the table's first rows lie at small negative z
    value = torch.special.i0e(z) * growth
    return value, torch.special.i1e(z) * growth - value


@functools.cache
def rule(nodes: int, device: torch.device) -> Rule:
    """The rule with this many nodes; made once.

    The range keeps nodes of 1e-25 (1e-45 with many nodes), as large parameters put all mass next to an end.
    """
    bound = 3.6 if nodes <= 128 else 4.2
    tau = torch.linspace(-bound, bound, nodes, dtype=torch.float64)
    odds = torch.exp(math.pi * torch.sinh(tau))
    x, y = odds / (1 + odds), 1 / (1 + odds)
    weights = (tau[1] - tau[0]) * math.pi * torch.cosh(tau) * x * y
    before = TAPS // 2 - 1
    rows = math.ceil(math.asinh(LARGEST) / STEP) + TAPS
    a = torch.sinh((torch.arange(rows, dtype=torch.float64) - before) * STEP)
    table = torch.cat(evaluate(a.unsqueeze(-1) * x), dim=-1)
    places = np.arange(TAPS) - before - 0.5
    lagrange = np.empty((TAPS, TAPS))
    for tap in range(TAPS):
        others = np.delete(places, tap)
        # Coefficients of a product of halves are exact in float64, those of an inverse are not.
        lagrange[:, tap] = np.poly(others)[::-1] / np.prod(places[tap] - others)
    return Rule(*(tensor.to(device) for tensor in (x, y, weights, table, torch.from_numpy(lagrange))))
