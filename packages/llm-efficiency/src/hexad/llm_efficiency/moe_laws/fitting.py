"""Fit a scaling law to training runs: many starts, a held-out part, bootstrap intervals.

Source: arXiv 2502.05172, appendix on fitting. Departures: the sum of Huber losses and not their mean,
gradients in closed form, Gauss-Newton steps after L-BFGS, a random part of the grid of starts, E_start and
E_max as log-parameters, no weight decay; and the start is selected by the fit alone, so that the held-out
error says something about runs never seen (`select="both"` is the paper's rule).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float

from hexad.core.errors import InputError
from hexad.core.validation import check_choice, check_count, check_range
from hexad.llm_efficiency.moe_laws.descent import LAST_POLISH_EVALUATIONS, descend, settle
from hexad.llm_efficiency.moe_laws.fit_checks import check_fixed, check_runs, fit_warnings
from hexad.llm_efficiency.moe_laws.law import AnyLaw, ChinchillaLaw, ClarkLaw, JointMoELaw, LawKind
from hexad.llm_efficiency.moe_laws.objective import (
    COEFFICIENTS,
    HUBER_DELTA,
    Objective,
    Vector,
    from_vector,
    to_vector,
)
from hexad.llm_efficiency.moe_laws.runs import Runs, choose_holdout

CONFIDENCE = 0.95
NEGLIGIBLE = 5e-4  # of a loss: less than another seed changes
FORMS: dict[str, dict[str, float]] = {
    "joint": {},
    # Without dependence on E it is Chinchilla's; e_start and e_max then have no part in it.
    "chinchilla": {"delta": 0, "gamma": 0, "omega": 0, "zeta": 0, "e_start": 1, "e_max": np.inf},
    "clark": {"b": 0, "omega": 0, "beta": 0, "zeta": 0, "c": 0},
}
"""What each law holds fixed of the joint law's coefficients."""

STARTS = {
    "a": (30.0, 100.0, 300.0),
    "alpha": (-0.05, -0.25, -0.5),
    "b": (30.0, 100.0, 300.0),
    "beta": (-0.05, -0.25, -0.5),
    "c": (0.5, 1.0, 2.0),
    "delta": (-0.5, 0.0, 0.5),
    "gamma": (-0.5, 0.0, 0.5),
    "omega": (-0.5, 0.0, 0.5),
    "zeta": (-0.5, 0.0, 0.5),
    "e_start": (1.5, 3.0, 6.0),
    "e_max": (64.0, 256.0, 1024.0),
}
"""The paper's grid of starts; those of e_start and e_max are ours."""

Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class FitResult:
    """A fitted law and how well it fits.

    Attributes:
        law: the law.
        rmse_train: of the fitted runs, in nats.
        rmse_holdout: of the runs held out, None without any.
        max_error: the largest error over all runs, in nats.
        ci: a 95 % percentile interval of each fitted coefficient; empty without bootstrap.
        objective: the weighted sum (or mean) of Huber losses that was reached.
        starts: that many starts reached it within 1 %, or to 5e-4 of the losses.
        residuals: predicted less observed loss of every run, in nats.
        held_out: which runs were held out.
        draws: the laws of the bootstrap's samples.
        warnings: reasons to doubt the fit, a line each.
    """

    law: AnyLaw
    rmse_train: float
    rmse_holdout: float | None
    max_error: float
    ci: dict[str, tuple[float, float]]
    objective: float
    starts: int
    residuals: Float[np.ndarray, " runs"]
    held_out: Bool[np.ndarray, " runs"]
    draws: list[AnyLaw] = field(default_factory=list, repr=False)
    warnings: tuple[str, ...] = ()


def _rmse(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(errors**2)))


def _law(kind: str, theta: Vector, runs: Runs) -> AnyLaw:
    """The law of a vector; its ranges are those of the runs."""
    given = from_vector(theta)
    if kind == "chinchilla":
        return ChinchillaLaw(given["a"], given["alpha"], given["b"], given["beta"], given["c"], runs.ranges)
    if kind == "clark":
        return ClarkLaw(
            **{key: given[key] for key in ("a", "alpha", "delta", "gamma", "e_start", "e_max")},
            ranges=runs.ranges,
        )
    return JointMoELaw(**given, ranges=runs.ranges)


def _starts(fixed: Mapping[str, float], count: int, generator: np.random.Generator) -> list[Vector]:
    """That many starts drawn from the grid, each at most once where the grid is large enough."""
    names = [name for name in COEFFICIENTS if name not in fixed]
    sizes = [len(STARTS[name]) for name in names]
    chosen = generator.choice(int(np.prod(sizes)), size=count, replace=bool(count > np.prod(sizes)))
    places = np.stack(np.unravel_index(chosen, sizes), axis=1)
    return [
        to_vector({**fixed, **{name: STARTS[name][i] for name, i in zip(names, row, strict=True)}})
        for row in places
    ]


def _end(
    objective: Objective, start: Vector, free: np.ndarray, polish: bool, near: bool = False
) -> tuple[float, Vector] | None:
    """Where a start leads, value and vector; None where it runs off to coefficients that are no numbers.

    From `near` a minimum the Gauss-Newton steps suffice.
    """
    theta, value = start, 0.0
    with np.errstate(all="ignore"):  # a line search may step where terms overflow, and steps back
        if not (near and polish):
            value, theta = descend(objective, theta, free)
        if polish and np.isfinite(value):
            value, theta = settle(objective, theta, free)
        coefficients = np.array(list(from_vector(theta).values()))
    return (value, theta) if np.isfinite(value) and np.isfinite(coefficients[free]).all() else None


def fit(
    runs: Any,
    law: LawKind = "joint",
    *,
    n_starts: int = 64,
    bootstrap: int = 0,
    holdout: str | Bool[np.ndarray, " runs"] | None = "lowest:30",
    fixed: Mapping[str, float] | None = None,
    weighting: Literal["none", "inverse-loss"] = "none",
    reduction: Literal["sum", "mean"] = "sum",
    select: Literal["train", "both"] = "train",
    polish: bool = True,
    huber_delta: float = HUBER_DELTA,
    seed: int = 0,
    progress: Progress | None = None,
) -> FitResult:
    """Fit a scaling law to runs.

    Args:
        runs: a data frame or mapping with the columns n_active, tokens, experts and loss (`Runs.of`).
        law: `"joint"`, `"chinchilla"` for runs of one number of experts, `"clark"` for runs of one number of
            tokens.
        n_starts: starts of L-BFGS, drawn from the paper's grid.
        bootstrap: samples of the fitted runs, drawn with replacement, each fitted from the solution.
        holdout: which runs are kept from the fit (`choose_holdout`); the paper's are the 30 of lowest loss.
        fixed: coefficients that are not fitted, such as `{"gamma": 0, "zeta": 0}` for a law without
            interactions.
        weighting: `"inverse-loss"` gives runs of higher loss less weight, as the paper does.
        reduction: `"mean"` is what to avoid, kept to be compared with.
        select: the start by its objective, or by the sum of both RMSEs, the paper's rule.
        polish: follow each descent by Gauss-Newton steps, which reach the bottom of the valley.
        huber_delta: residuals of ln L beyond it count linearly.
        seed: of starts and bootstrap.
        progress: called as `progress(share, note)`.

    Raises:
        InputError: bad runs; fewer distinct runs than coefficients; a joint law of fewer than three numbers
            of experts (fit Chinchilla's), a Chinchilla law of several, or a Clark law of several numbers of
            tokens; an unknown option.
    """
    check_choice("law", law, FORMS)
    check_count("n_starts", n_starts)
    check_count("bootstrap", bootstrap, 0)
    check_choice("weighting", weighting, ("none", "inverse-loss"))
    check_choice("reduction", reduction, ("sum", "mean"))
    check_choice("select", select, ("train", "both"))
    check_range("huber_delta", huber_delta, 0, low_open=True)
    check_count("seed", seed, 0)
    check_fixed(fixed or {})
    held = {**FORMS[law], **(fixed or {})}
    free = np.array([name not in held for name in COEFFICIENTS])
    table = Runs.of(runs)
    held_out = choose_holdout(table, holdout)
    kept = table[~held_out]
    check_runs(kept, law, held)
    tell = progress or (lambda share, note: None)
    rows = 1 / kept.loss if weighting == "inverse-loss" else np.ones(len(kept))
    objective = Objective(kept, rows / rows.mean(), huber_delta, reduction)
    whole = Objective(table, np.ones(len(table)), huber_delta)
    generator = np.random.default_rng(seed)

    def errors(theta: np.ndarray) -> np.ndarray:
        return np.exp(whole.log_loss(theta)[0]) - table.loss

    ends: list[tuple[float, float, Vector]] = []
    steps = n_starts + bootstrap
    for done, start in enumerate(_starts(held, n_starts, generator)):
        tell(done / steps, f"start {done + 1} of {n_starts}")
        end = _end(objective, start, free, polish)
        if end is None:
            continue
        value, theta = end
        residuals = errors(theta)
        score = value
        if select == "both" and held_out.any():
            score = _rmse(residuals[~held_out]) + _rmse(residuals[held_out])
        ends.append((score, value, theta))
    if not ends:
        raise InputError(f"no start of {n_starts} converged; give more starts")
    _, value, best = min(ends, key=lambda end: end[0])
    # Half the squares of the negligible errors, for losses of so little noise that 1 % is less than that.
    negligible = 0.5 * NEGLIGIBLE**2 * (len(kept) if reduction == "sum" else 1)
    least = 1.01 * min(end[1] for end in ends) + negligible
    reached = sum(end[1] <= least for end in ends)
    if polish:
        with np.errstate(all="ignore"):
            value, best = settle(objective, best, free, LAST_POLISH_EVALUATIONS)
    draws = []
    for done in range(bootstrap):
        tell((n_starts + done) / steps, f"bootstrap {done + 1} of {bootstrap}")
        drawn = generator.integers(len(kept), size=len(kept))
        sample = Objective(kept[drawn], rows[drawn] / rows[drawn].mean(), huber_delta, reduction)
        end = _end(sample, best, free, polish, near=True)
        draws += [] if end is None else [end[1]]
    residuals, found = errors(best), _law(law, best, kept)
    return FitResult(
        law=found,
        rmse_train=_rmse(residuals[~held_out]),
        rmse_holdout=_rmse(residuals[held_out]) if held_out.any() else None,
        max_error=float(np.abs(residuals).max()),
        ci=_intervals(law, draws, held),
        objective=value,
        starts=reached,
        residuals=residuals,
        held_out=held_out,
        draws=[_law(law, theta, kept) for theta in draws],
        warnings=fit_warnings(kept, found, held, best, reached, n_starts, bootstrap),
    )


CHINCHILLA_NAMES = {"a": "m", "alpha": "mu", "b": "n", "beta": "nu", "c": "c"}


def _intervals(
    law: LawKind, draws: list[np.ndarray], held: Mapping[str, float]
) -> dict[str, tuple[float, float]]:
    """Percentile intervals of the fitted coefficients, under the names that the law has for them."""
    if not draws:
        return {}
    rows = [from_vector(theta) for theta in draws]
    tail = (1 - CONFIDENCE) / 2
    intervals = {}
    for name in COEFFICIENTS:
        if name not in held:
            low, high = np.quantile([row[name] for row in rows], [tail, 1 - tail])
            intervals[CHINCHILLA_NAMES[name] if law == "chinchilla" else name] = (float(low), float(high))
    return intervals
