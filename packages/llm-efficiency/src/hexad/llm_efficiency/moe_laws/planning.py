"""Which model to train: width, tokens and experts under a budget of compute, memory and inference.

Source: "Joint MoE Scaling Laws" (arXiv 2502.05172), sections on compute, memory and inference optimality. The
budget is 6 N D + 2 N D_inf = F, and in memory N_total + cache <= M elements. For one E only the width is
free: all compute that a smaller model leaves goes to tokens. The loss has one minimum in ln d.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from scipy.optimize import brentq, minimize_scalar

from hexad.core.errors import InputError
from hexad.core.validation import check_flag, check_range
from hexad.llm_efficiency.moe_laws.architecture import Architecture, SwitchArch
from hexad.llm_efficiency.moe_laws.law import JointMoELaw, Law

EXPERTS = (1, 2, 4, 8, 16, 32)
PAPER = JointMoELaw()
SWITCH = SwitchArch()

_STEP = 1e-3  # of the difference quotients in ln d


@dataclass(frozen=True)
class Candidate:
    """The best model with one number of experts.

    Attributes:
        experts: E.
        width: d; a real number unless the plan is discrete.
        n_active: active parameters.
        n_total: parameters in memory.
        tokens: to train on.
        tokens_per_parameter: D / N_act.
        loss: predicted nats per token.
        memory_bytes: of parameters and cache.
        limit: what keeps it from being larger: the compute optimum, or memory.
        most_active: active parameters of the largest model that fits into memory; infinite without a limit.
        warnings: where the law extrapolates.
    """

    experts: float
    width: float
    n_active: float
    n_total: float
    tokens: float
    tokens_per_parameter: float
    loss: float
    memory_bytes: float
    limit: Literal["compute", "memory"]
    most_active: float
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The best model for each number of experts under one budget.

    Attributes:
        rows: by number of experts.
        skipped: why a number of experts has no row.
        flops, memory_bytes, kv_tokens, inference_tokens: the budget.
    """

    rows: tuple[Candidate, ...]
    skipped: dict[float, str]
    flops: float
    memory_bytes: float
    kv_tokens: float
    inference_tokens: float

    @property
    def best(self) -> Candidate:
        """The row of least loss; of equal ones that of fewest experts."""
        return min(self.rows, key=lambda row: row.loss)

    def recommendation(self) -> str:
        """The best row as a sentence."""
        best = self.best
        kind = "a dense model" if best.experts == 1 else f"{best.experts:g} experts"
        text = (
            f"Train {kind} of width {best.width:.0f} ({short(best.n_active)} active parameters, "
            f"{short(best.n_total)} in all) on {short(best.tokens)} tokens: {best.loss:.4f} nats per token"
        )
        dense = next((row for row in self.rows if row.experts == 1), None)
        if dense is not None and best.experts != 1:
            text += f", {dense.loss - best.loss:.4f} below the best dense model"
        if best.limit == "memory":
            text += "; memory keeps it from being larger"
        return text + "."

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; no limit of memory is None."""
        return {
            "flops": self.flops,
            "memory_bytes": self.memory_bytes if math.isfinite(self.memory_bytes) else None,
            "kv_tokens": self.kv_tokens,
            "inference_tokens": self.inference_tokens,
            "rows": [_plain(row) for row in self.rows],
            "skipped": {f"{experts:g}": reason for experts, reason in self.skipped.items()},
            "best": _plain(self.best),
            "recommendation": self.recommendation(),
        }


def _plain(row: Candidate) -> dict[str, Any]:
    """A row as JSON values, which know neither tuples nor infinity."""
    most = row.most_active if math.isfinite(row.most_active) else None
    return asdict(row) | {"warnings": list(row.warnings), "most_active": most}


def short(count: float) -> str:
    """A count for people: 1.7B, 990M, 12."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= 0.9995 * size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.3g}"


@dataclass(frozen=True)
class _Problem:
    """Minimise the loss over the width, for one number of experts."""

    flops: float
    elements: float
    kv_tokens: float
    inference_tokens: float
    experts: float
    law: Law
    arch: Architecture

    def tokens(self, width: float) -> float:
        """D that the budget leaves; it falls with the width."""
        spent = self.inference_tokens * self.arch.inference_flops(width, self.experts)
        return (self.flops - spent) / self.arch.train_flops(width, self.experts)

    def size(self, width: float) -> float:
        """Elements in memory."""
        return self.arch.total(width, self.experts) + self.arch.cache(width, self.experts, self.kv_tokens)

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

    def optimum(self, largest: float) -> float:
        """The width of least loss, up to `largest`: Brent's search, refined as the root of the slope.

        Values of the loss alone determine ln d to half of a float's digits.
        """
        low, high = math.log(self.arch.step), math.log(largest)
        rough = minimize_scalar(
            lambda x: self.loss(math.exp(x)), bounds=(low, high), method="bounded", options={"xatol": 1e-8}
        ).x
        found = [math.exp(rough), math.exp(low), largest]
        left, right = rough - 4 * _STEP, rough + 4 * _STEP
        within = left - 2 * _STEP > low and right + 2 * _STEP < high
        if within and self.slope(left) < 0 < self.slope(right):
            found[0] = math.exp(brentq(self.slope, left, right, xtol=1e-13))
        return min(found, key=self.loss)


def _largest(fits: Callable[[float], float], smallest: float) -> float:
    """The largest width with `fits(width) >= 0`, where `fits` falls with the width and serves `smallest`."""
    high = 2 * smallest
    while fits(high) > 0:
        high *= 2
        if high > 1e9:
            return high
    return brentq(fits, smallest, high, xtol=1e-9, rtol=1e-14)


def _check(
    flops: float, memory_bytes: float, kv_tokens: float, bytes_per_param: float, inference_tokens: float
) -> None:
    check_range("flops", flops, 0, low_open=True)
    if memory_bytes != math.inf:
        check_range("memory_bytes", memory_bytes, 0, low_open=True)
    check_range("kv_tokens", kv_tokens, 0)
    check_range("bytes_per_param", bytes_per_param, 0, low_open=True)
    check_range("inference_tokens", inference_tokens, 0)


def _check_compute(problem: _Problem) -> None:
    """Refuse a budget of compute that cannot train the smallest model."""
    arch, smallest = problem.arch, problem.arch.step
    served = arch.inference_flops(smallest, problem.experts) * problem.inference_tokens
    if served >= problem.flops:
        raise InputError(
            f"inference_tokens {problem.inference_tokens:.3g} use up the budget of {problem.flops:.3g} FLOPs "
            f"even with the smallest model (width {smallest}), which needs {served:.3g}; give more flops or "
            "fewer tokens"
        )
    active = arch.active(smallest, problem.experts)
    if problem.tokens(smallest) < active:
        needed = arch.train_flops(smallest, problem.experts) * active + served
        raise InputError(
            f"flops {problem.flops:.3g} are too few for the smallest model (width {smallest}, "
            f"{short(active)} active): less than a token per parameter; give at least {needed:.2g}"
        )


def plan(
    flops: float,
    *,
    memory_bytes: float = math.inf,
    kv_tokens: float = 0,
    bytes_per_param: float = 2,
    inference_tokens: float = 0,
    experts: Sequence[float] = EXPERTS,
    law: Law = PAPER,
    arch: Architecture = SWITCH,
    discrete: bool = False,
) -> Plan:
    """The best model for each number of experts under a budget.

    Args:
        flops: F, for training and inference together.
        memory_bytes: for parameters and cache; infinite by default.
        kv_tokens: T, tokens in the cache.
        bytes_per_param: of a parameter and of an element of the cache; 2 for bf16.
        inference_tokens: D_inf, tokens served over the model's life.
        experts: the numbers of experts to compare.
        law: predicts the loss; the paper's by default.
        arch: counts parameters, cache and FLOPs.
        discrete: widths are multiples of `arch.step` (64), as they are built.

    Raises:
        InputError: a number out of range; memory below the smallest model; a budget that its inference uses
            up or that is too small to train the smallest model.
    """
    _check(flops, memory_bytes, kv_tokens, bytes_per_param, inference_tokens)
    check_flag("discrete", discrete)
    if not len(experts):
        raise InputError("experts is empty; give numbers of experts, such as (1, 8)")
    for count in experts:
        check_range("experts", count, 1)
    elements = memory_bytes / bytes_per_param
    rows, skipped = [], {}
    for count in sorted(set(experts)):
        problem = _Problem(flops, elements, kv_tokens, inference_tokens, count, law, arch)
        _check_compute(problem)
        if problem.size(arch.step) > elements:
            skipped[count] = (
                f"the smallest model (width {arch.step}) takes "
                f"{short(problem.size(arch.step) * bytes_per_param)} bytes"
            )
            continue
        rows.append(_candidate(problem, bytes_per_param, discrete))
    if not rows:
        raise InputError(
            f"memory_bytes {memory_bytes:.3g} hold no model: with {min(skipped):g} expert(s) "
            f"{skipped[min(skipped)]}; give more memory, fewer kv_tokens or fewer bytes_per_param"
        )
    return Plan(tuple(rows), skipped, flops, memory_bytes, kv_tokens, inference_tokens)


def _candidate(problem: _Problem, bytes_per_param: float, discrete: bool) -> Candidate:
    """The best width of one problem."""
    arch, count = problem.arch, problem.experts
    # No further than one token: the loss is defined there, and the optimum is far from it.
    by_compute = _largest(lambda width: problem.tokens(width) - 1, arch.step)
    by_memory = math.inf
    if math.isfinite(problem.elements):
        by_memory = _largest(lambda width: problem.elements - problem.size(width), arch.step)
    largest = min(by_compute, by_memory)
    width = problem.optimum(largest)
    limit = "memory" if by_memory < by_compute and width > largest * (1 - 1e-9) else "compute"
    if discrete:
        below = max(arch.step, math.floor(width / arch.step * (1 + 1e-12)) * arch.step)
        grid = [below, below + arch.step] if below + arch.step <= largest else [below]
        width = min(grid, key=problem.loss)
    n_active, n_total = arch.active(width, count), arch.total(width, count)
    tokens = problem.tokens(width)
    ranges = problem.law.ranges
    return Candidate(
        experts=count,
        width=width,
        n_active=n_active,
        n_total=n_total,
        tokens=tokens,
        tokens_per_parameter=tokens / n_active,
        loss=problem.loss(width),
        memory_bytes=problem.size(width) * bytes_per_param,
        limit=limit,
        most_active=math.inf if by_memory == math.inf else arch.active(by_memory, count),
        warnings=() if ranges is None else tuple(ranges.left(n_active, tokens, count, n_total)),
    )
