"""Which model to train: width, tokens and experts under a budget of compute, memory and inference.

Source: "Joint MoE Scaling Laws" (arXiv 2502.05172), sections on compute, memory and inference optimality. The
budget is 6 N D + 2 N D_inf = F, and in memory N_total + cache <= M elements. For one E only the width is
free (`problem.py`).
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hexad.core.errors import InputError
from hexad.core.validation import check_flag, check_range
from hexad.llm_efficiency.moe_laws.architecture import Architecture, SwitchArch
from hexad.llm_efficiency.moe_laws.law import JointMoELaw, Law
from hexad.llm_efficiency.moe_laws.problem import Problem
from hexad.llm_efficiency.moe_laws.quantities import short, short_bytes

EXPERTS = (1, 2, 4, 8, 16, 32)
PAPER = JointMoELaw()
SWITCH = SwitchArch()


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

    experts: int
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
    skipped: dict[int, str]
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
        kind = "a dense model" if best.experts == 1 else f"{best.experts} experts"
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
            "skipped": {str(experts): reason for experts, reason in self.skipped.items()},
            "best": _plain(self.best),
            "recommendation": self.recommendation(),
        }


def _plain(row: Candidate) -> dict[str, Any]:
    """A row as JSON values, which know neither tuples nor infinity."""
    most = row.most_active if math.isfinite(row.most_active) else None
    return asdict(row) | {"warnings": list(row.warnings), "most_active": most}


def _check(
    flops: float, memory_bytes: float, kv_tokens: float, bytes_per_param: float, inference_tokens: float
) -> None:
    check_range("flops", flops, 0, low_open=True)
    if memory_bytes != math.inf:
        check_range("memory_bytes", memory_bytes, 0, low_open=True)
    check_range("kv_tokens", kv_tokens, 0)
    check_range("bytes_per_param", bytes_per_param, 0, low_open=True)
    check_range("inference_tokens", inference_tokens, 0)


def check_experts(experts: Iterable[float]) -> list[int]:
    """Numbers of experts, each once and rising.

    Raises:
        InputError: no sequence, an empty one, or one of what is no whole number of at least 1.
    """
    try:
        counts = set(experts)
    except TypeError:
        raise InputError(f"experts is {experts!r}; give a sequence of numbers, such as (1, 8)") from None
    if not counts:
        raise InputError("experts is empty; give numbers of experts, such as (1, 8)")
    for count in counts:
        if check_range("experts", count, 1) != int(count):
            raise InputError(f"experts is {count!r}; it must be a whole number")
    return sorted(map(int, counts))


def check_law(law: object) -> None:
    """Refuse what predicts no loss."""
    if not isinstance(law, Law) or isinstance(law, type):
        raise InputError(f"law is {law!r}; give one with `loss` and `ranges`, such as JointMoELaw()")


def plan(
    flops: float,
    *,
    memory_bytes: float = math.inf,
    kv_tokens: float = 0,
    bytes_per_param: float = 2,
    inference_tokens: float = 0,
    experts: Iterable[float] = EXPERTS,
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
            up, that is too small to train the smallest model or too large to be searched; a law whose loss
            does not fall with active parameters and with tokens.
    """
    _check(flops, memory_bytes, kv_tokens, bytes_per_param, inference_tokens)
    check_flag("discrete", discrete)
    check_law(law)
    if not isinstance(arch, Architecture) or isinstance(arch, type):
        raise InputError(f"arch is {arch!r}; give one with the methods of Architecture, such as SwitchArch()")
    # Plain floats, whatever numbers were given: plans are written as JSON.
    flops, memory_bytes, kv_tokens, inference_tokens = map(
        float, (flops, memory_bytes, kv_tokens, inference_tokens)
    )
    elements = memory_bytes / bytes_per_param
    rows, skipped = [], {}
    for count in check_experts(experts):
        problem = Problem(flops, elements, kv_tokens, inference_tokens, count, law, arch)
        by_compute = problem.largest_by_compute()
        problem.check_law(by_compute)
        smallest = problem.size(arch.step)
        if smallest > elements:
            taken = short_bytes(smallest * bytes_per_param)
            skipped[count] = f"the smallest model (width {arch.step}) takes {taken}"
            continue
        rows.append(_candidate(problem, by_compute, bytes_per_param, discrete))
    if not rows:
        raise InputError(
            f"{short_bytes(memory_bytes)} of memory hold no model: with {min(skipped)} expert(s) "
            f"{skipped[min(skipped)]}; give more memory, a smaller cache or fewer bytes a parameter"
        )
    return Plan(tuple(rows), skipped, flops, memory_bytes, kv_tokens, inference_tokens)


def _candidate(problem: Problem, by_compute: float, bytes_per_param: float, discrete: bool) -> Candidate:
    """The best width of one problem."""
    arch, count = problem.arch, problem.experts
    by_memory = problem.largest_by_memory()
    largest = min(by_compute, by_memory)
    width = problem.optimum(largest)
    limit = "memory" if by_memory < by_compute and width > largest * (1 - 1e-9) else "compute"
    if discrete:
        below = max(arch.step, math.floor(width / arch.step * (1 + 1e-12)) * arch.step)
        grid = [below, below + arch.step] if below + arch.step <= largest else [below]
        width = min(grid, key=problem.loss)
    n_active, n_total = float(arch.active(width, count)), float(arch.total(width, count))
    tokens = problem.tokens(width)
    ranges = problem.law.ranges
    return Candidate(
        experts=count,
        width=float(width),
        n_active=n_active,
        n_total=n_total,
        tokens=tokens,
        tokens_per_parameter=tokens / n_active,
        loss=problem.loss(width),
        memory_bytes=problem.size(width) * bytes_per_param,
        limit=limit,
        most_active=math.inf if by_memory == math.inf else float(arch.active(by_memory, count)),
        warnings=() if ranges is None else tuple(ranges.left(n_active, tokens, count, n_total)),
    )
