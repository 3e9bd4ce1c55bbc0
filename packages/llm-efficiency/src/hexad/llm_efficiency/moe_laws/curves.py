"""IsoFLOP curves, the FLOPs that experts save, and the paper's learning rate."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq

from hexad.core.errors import InputError
from hexad.core.validation import check_count, check_range
from hexad.llm_efficiency.moe_laws.law import JointMoELaw, Law
from hexad.llm_efficiency.moe_laws.planning import EXPERTS, PAPER, check_experts, check_law

WIDEST_SPAN = 1e6
LEAST_GAP = 1e-9  # between an optimal loss and c, of the loss: what is closer drowns in rounding


@dataclass(frozen=True)
class IsoFlop:
    """Models of one number of experts that cost the same to train.

    Attributes:
        experts: E.
        n_active: active parameters, rising.
        tokens: that the budget leaves.
        loss: predicted.
    """

    experts: int
    n_active: Float[np.ndarray, " points"]
    tokens: Float[np.ndarray, " points"]
    loss: Float[np.ndarray, " points"]


def isoflop(
    flops: float,
    experts: Iterable[float] = EXPERTS,
    *,
    inference_tokens: float = 0,
    law: Law = PAPER,
    points: int = 200,
    span: float = 30.0,
) -> list[IsoFlop]:
    """The curve of loss over active parameters at 6 N D + 2 N D_inf = `flops`, for each number of experts.

    Args:
        flops: the budget.
        experts: one curve each, by rising number.
        inference_tokens: D_inf.
        law: predicts the loss.
        points: of a curve.
        span: the curves reach from N / span to N span, where N is the model trained on 20 tokens a parameter.

    Raises:
        InputError: a number out of range, or inference that uses up the budget everywhere.
    """
    check_range("flops", flops, 0, low_open=True)
    check_range("inference_tokens", inference_tokens, 0)
    check_count("points", points, 2)
    check_range("span", span, 1, WIDEST_SPAN, low_open=True)
    check_law(law)
    counts = check_experts(experts)
    centre = math.sqrt(flops / 6 / 20)
    n_active = np.geomspace(centre / span, centre * span, points)
    tokens = flops / (6 * n_active) - inference_tokens / 3
    n_active, tokens = n_active[tokens > n_active / span**2], tokens[tokens > n_active / span**2]
    if not len(n_active):
        raise InputError(
            f"inference_tokens {inference_tokens:.3g} use up the budget of {flops:.3g} FLOPs; give more flops"
        )
    return [IsoFlop(count, n_active, tokens, law.loss(n_active, tokens, count)) for count in counts]


def flop_savings(flops: float, experts: float, law: JointMoELaw = PAPER) -> float:
    """The share of `flops` that the optimal MoE saves to reach the loss of the optimal dense model.

    1 - F'/F, where F' FLOPs take the compute-optimal model of that many experts to the loss that F take the
    compute-optimal dense model to; negative where the MoE needs more.

    Raises:
        InputError: E below 1; a law that is not joint or has no optimum; flops not positive, too few for an
            optimal dense model of a parameter and a token, or so many that its loss is c.
    """
    if not isinstance(law, JointMoELaw):
        raise InputError(f"law is {law!r}; savings are between numbers of experts, so give a JointMoELaw")
    dense = law.chinchilla(1).optimum(flops)
    target = dense.loss
    if min(dense.n_active, dense.tokens) < 1 or target - law.c < LEAST_GAP * target:
        raise InputError(
            f"flops {flops:.3g} are beyond what the law can compare: the optimal dense model has "
            f"{dense.n_active:.3g} parameters, {dense.tokens:.3g} tokens and loss c + {target - law.c:.2g}"
        )
    sparse = law.chinchilla(experts)

    def excess(log_flops: float) -> float:
        return sparse.optimum(math.exp(log_flops)).loss - target

    centre, reach = math.log(flops), 1.0
    while excess(centre - reach) < 0 or excess(centre + reach) > 0:
        reach *= 2
        if reach > 100:
            raise InputError(
                f"{experts:g} experts never reach the dense model's loss of {target:.4g} by this law"
            )
    return 1 - math.exp(brentq(excess, centre - reach, centre + reach, xtol=1e-12) - centre)


def learning_rate(n_active_nonembedding: float, experts: float = 1) -> float:
    """The paper's peak learning rate, exp(8.39 - 0.81 ln N - 0.25 ln E) (its appendix on hyperparameters).

    Args:
        n_active_nonembedding: N, active parameters without embedding and unembedding.
        experts: E.

    Raises:
        InputError: N is not positive, or E below 1.
    """
    check_range("n_active_nonembedding", n_active_nonembedding, 0, low_open=True)
    check_range("experts", experts, 1)
    return math.exp(8.39 - 0.81 * math.log(n_active_nonembedding) - 0.25 * math.log(experts))
