"""The best width of a model with one number of experts under a budget.

Source: "Joint MoE Scaling Laws" (arXiv 2502.05172), sections on compute, memory and inference optimality. All
compute that a smaller model leaves goes to tokens; the loss has one minimum in ln d.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from hexad.core.errors import InputError
from hexad.llm_efficiency.moe_laws.architecture import Architecture
from hexad.llm_efficiency.moe_laws.law import Law
from hexad.llm_efficiency.moe_laws.quantities import short

WIDEST = 1e15  # of the search: with the paper's models 1e45 FLOPs

_STEP = 1e-3  # of the difference quotients in ln d


@dataclass(frozen=True)
class Problem:
    """Minimise the loss over the width, for one number of experts."""

    flops: float
    elements: float
    kv_tokens: float
    inference_tokens: float
    experts: int
    law: Law
    arch: Architecture

    def tokens(self, width: float) -> float:
        """D that the budget leaves; it falls with the width."""
        spent = self.inference_tokens * self.arch.inference_flops(width, self.experts)
        return float((self.flops - spent) / self.arch.train_flops(width, self.experts))

    def size(self, width: float) -> float:
        """Elements in memory."""
        held = self.arch.total(width, self.experts) + self.arch.cache(width, self.experts, self.kv_tokens)
        return float(held)

    def loss(self, width: float) -> float:
        """Of the model of that width, trained with all the compute."""
        return float(self.law.loss(self.arch.active(width, self.experts), self.tokens(width), self.experts))

    def slope(self, log_width: float) -> float:
        """d loss / d ln d, to fourth order."""
        one, two = (
            self.loss(math.exp(log_width + k * _STEP)) - self.loss(math.exp(log_width - k * _STEP))
            for k in (1, 2)
        )
        return (8 * one - two) / (12 * _STEP)

    def largest_by_compute(self) -> float:
        """The width that leaves one token: the loss is defined there, and the optimum is far from it.

        Raises:
            InputError: a budget that cannot train the smallest model, or one beyond the search.
        """
        self._check_compute()
        width = _largest(lambda width: self.tokens(width) - 1, self.arch.step)
        if width == math.inf:
            raise InputError(
                f"flops {self.flops:.3g} are beyond what is searched, widths up to {WIDEST:.0e}; give fewer"
            )
        return width

    def largest_by_memory(self) -> float:
        """The width that fills the memory, which holds the smallest model; infinite beyond the search."""
        if math.isinf(self.elements):
            return math.inf
        return _largest(lambda width: self.elements - self.size(width), self.arch.step)

    def optimum(self, largest: float) -> float:
        """The width of least loss, up to `largest`: Brent's search, refined as the root of the slope.

        Values of the loss alone determine ln d to half of a float's digits.
        """
        low, high = math.log(self.arch.step), math.log(largest)
        rough = minimize_scalar(
            lambda x: self.loss(math.exp(x)), bounds=(low, high), method="bounded", options={"xatol": 1e-8}
        ).x
        found = [math.exp(rough), self.arch.step, largest]
        left, right = rough - 4 * _STEP, rough + 4 * _STEP
        within = left - 2 * _STEP > low and right + 2 * _STEP < high
        if within and self.slope(left) < 0 < self.slope(right):
            found[0] = math.exp(brentq(self.slope, left, right, xtol=1e-13))
        return min(found, key=self.loss)

    def check_law(self, by_compute: float) -> None:
        """Refuse a law whose loss does not fall with N and with D, which sets no optimum.

        A law that falls at all falls between the smallest model and the one that leaves a single token.
        """
        few, many = (self.arch.active(width, self.experts) for width in (self.arch.step, by_compute))
        short_run, long_run = self.tokens(by_compute), self.tokens(self.arch.step)
        with np.errstate(over="ignore"):  # a loss beyond all floats is refused below
            best, smaller, shorter = (
                float(self.law.loss(n_active, tokens, self.experts))
                for n_active, tokens in ((many, long_run), (few, long_run), (many, short_run))
            )
        mend = "leave that number of experts out, or plan by another law"
        if not all(map(math.isfinite, (best, smaller, shorter))):
            raise InputError(f"the law predicts no finite loss with {self.experts} expert(s); {mend}")
        for name, loss in (("active parameters", smaller), ("tokens", shorter)):
            if not best < loss:
                raise InputError(
                    f"no optimum with {self.experts} expert(s): by the law the loss does not fall with "
                    f"{name}; {mend}"
                )

    def _check_compute(self) -> None:
        """Refuse a budget of compute that cannot train the smallest model."""
        smallest = self.arch.step
        served = self.arch.inference_flops(smallest, self.experts) * self.inference_tokens
        if served >= self.flops:
            raise InputError(
                f"inference_tokens {self.inference_tokens:.3g} use up the budget of {self.flops:.3g} FLOPs "
                f"even with the smallest model (width {smallest}), which needs {served:.3g}; give more flops "
                "or fewer tokens"
            )
        active = self.arch.active(smallest, self.experts)
        if self.tokens(smallest) < active:
            needed = self.arch.train_flops(smallest, self.experts) * active + served
            raise InputError(
                f"flops {self.flops:.3g} are too few for the smallest model (width {smallest}, "
                f"{short(active)} active): less than a token per parameter; give at least {needed:.2g}"
            )


def _largest(fits: Callable[[float], float], smallest: float) -> float:
    """The largest width with `fits(width) >= 0`, where `fits` falls and serves `smallest`; else infinity."""
    high = 2 * smallest
    while fits(high) > 0:
        high *= 2
        if high > WIDEST:
            return math.inf
    return brentq(fits, smallest, high, xtol=1e-9, rtol=1e-14)
