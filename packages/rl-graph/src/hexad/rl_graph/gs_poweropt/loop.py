"""The run around a search: its budget, its steps, its end, and what is said of them."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.optimize
from jaxtyping import Float
from scipy.optimize import OptimizeWarning

from hexad.core.errors import InputError
from hexad.rl_graph.gs_poweropt.ask_tell import GSPower
from hexad.rl_graph.gs_poweropt.settings import count_of

Batch = Callable[[Float[np.ndarray, "K d"]], Float[np.ndarray, " K"]]

MESSAGES = {
    0: "the number of iterations, maxiter, is reached",
    1: "the next step would take more evaluations than maxfev leaves",
    2: "no step had a direction: fun is the same at all samples, or failed at all of them",
    99: "`callback` raised `StopIteration`",
    130: "interrupted by Ctrl-C",
}
POLISH_SHARE = 100
"""Evaluations a variable that maxfev keeps for polishing, if it has twice as many."""
POLISH_MOST = 200
"""Evaluations a variable that polishing takes at most."""


@dataclass(frozen=True)
class Budget:
    """What a run may take.

    Args:
        maxiter: steps in all.
        total: evaluations in all, infinite without `maxfev`.
        steps: evaluations before polishing.
        evaluate_start: evaluate x0 first.
        evaluate_mean: evaluate mu too, once a step.
        polish: end with Nelder-Mead.
    """

    maxiter: int
    total: float = math.inf
    steps: float = math.inf
    evaluate_start: bool = True
    evaluate_mean: bool = False
    polish: bool = False


def budget_of(
    search: GSPower, maxiter: int, maxfev: int | None, evaluate_start: bool, evaluate_mean: bool, polish: bool
) -> Budget:
    """The budget of a run; with `polish` and `maxfev` 100 evaluations a variable are kept, half at most.

    Raises:
        InputError: evaluations are too few for a step, or would leave none to polish.
    """
    if maxfev is None:
        return Budget(maxiter, math.inf, math.inf, evaluate_start, evaluate_mean, polish)
    limit = count_of("maxfev", maxfev)
    needed = search.settings.popsize + evaluate_mean + evaluate_start
    if limit < needed:
        start = " and x0" if evaluate_start else ""
        raise InputError(
            f"maxfev is {limit}, less than the {needed} evaluations of one step{start}; lower popsize"
        )
    kept = min(POLISH_SHARE * len(search.mean), limit // 2, limit - needed) if polish else 0
    if polish and not kept:
        raise InputError(f"one step takes all of maxfev={limit} and leaves none to polish; lower popsize")
    return Budget(maxiter, limit, limit - kept, evaluate_start, evaluate_mean, polish)


def advance(
    search: GSPower,
    evaluate: Batch,
    budget: Budget,
    after_step: Callable[[], bool] = lambda: False,
) -> int:
    """Make steps until there are `maxiter`, or the next would take more evaluations than there are.

    Args:
        search: what is moved; its earlier steps count.
        evaluate: from points (K, d) to values (K,).
        budget: steps and evaluations.
        after_step: called after each step; it says whether to stop.

    Returns:
        a key of `MESSAGES`.
    """
    if budget.evaluate_start and not search.nfev:
        consider(search, evaluate, search.mean)
    while search.nit < budget.maxiter:
        if search.nfev + search.settings.popsize + budget.evaluate_mean > budget.steps:
            break
        X = search.ask()
        if budget.evaluate_mean:
            consider(search, evaluate, search.mean)
        search.tell(evaluate(X))
        if after_step():
            return 99
    if search.nit and search.stalls == search.nit:
        return 2
    return 0 if search.nit >= budget.maxiter else 1


def take_unfinished(search: GSPower, stop: KeyboardInterrupt) -> None:
    """Take the values of a step that Ctrl-C ended, as far as they are known (fun called point by point)."""
    values = getattr(stop, "values", [])
    if values:
        for x, value in zip(search.ask(), values, strict=False):
            if math.isfinite(value):
                search.consider(x, value)
            else:
                search.nfev += 1


def finish(search: GSPower, evaluate: Batch, budget: Budget) -> dict[str, Any]:
    """The value at `x_mean` and, if wanted, Nelder-Mead, as far as there are evaluations for them."""
    ending: dict[str, Any] = {"fun_mean": math.nan, "nfev_polish": 0, "polished": None}
    if search.nfev < budget.total and search.nit:
        ending["fun_mean"] = consider(search, evaluate, search.x_mean)
    if budget.polish and math.isfinite(search.fun) and search.nfev < budget.total:
        before = search.nfev
        ending["polished"] = _polish(search, evaluate, budget.total - search.nfev)
        ending["nfev_polish"] = search.nfev - before
    return ending


def describe(search: GSPower, status: int, ending: dict[str, Any]) -> dict[str, Any]:
    """How the run ended, in SciPy's words, and how near to an optimum it can be."""
    units = "" if np.all(search.x_scale == 1) else ", both times x_scale"
    message = (
        f"{MESSAGES[status]}; in each variable iterates settle about sigma/sqrt(popsize) = "
        f"{search.settings.accuracy:.3g} from the smoothed objective's optimum, or the step length, "
        f"{search.result.step_length:.3g}, if that is larger{units}"
    )
    if search.moves_on:
        message += (
            "; the last iterates still moved one way, so that they have not settled: raise maxiter or "
            "learning_rate"
        )
    if ending["polished"] is False:
        message += f"; Nelder-Mead had not converged after its {ending['nfev_polish']} evaluations"
    return {"status": status, "success": status in (0, 1), "message": message}


def consider(search: GSPower, evaluate: Batch, x: Float[np.ndarray, " d"]) -> float:
    """Evaluate a point beside the steps; NaN and inf are treated as in these."""
    # A copy, as fun may write into what it is given.
    value = float(evaluate(x[None].copy())[0])
    search.consider(x, value)
    return value


def _polish(search: GSPower, evaluate: Batch, budget: float) -> bool:
    """Nelder-Mead from the best point; whether it converged."""
    box = search.box

    def fun(x: Float[np.ndarray, " d"]) -> float:
        value = consider(search, evaluate, x)
        return value if math.isfinite(value) else 1e300

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizeWarning)  # of x0 on a face of the box
        found = scipy.optimize.minimize(
            fun,
            search.x,
            method="nelder-mead",
            bounds=None if box is None else scipy.optimize.Bounds(box.lower, box.upper),
            options={"adaptive": True, "maxfev": int(min(budget, POLISH_MOST * len(search.x)))},
        )
    return bool(found.success)
