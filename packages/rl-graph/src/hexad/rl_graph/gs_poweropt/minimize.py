"""`minimize_gspower`: the method as a function of SciPy's kind."""

import math
import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from scipy.optimize import OptimizeResult, OptimizeWarning

from hexad.core.errors import InputError
from hexad.core.validation import check_choice, check_flag
from hexad.rl_graph.gs_poweropt.arguments import AnyRng
from hexad.rl_graph.gs_poweropt.ask_tell import GSPower
from hexad.rl_graph.gs_poweropt.box import AnyBounds, Boundary
from hexad.rl_graph.gs_poweropt.evaluation import MapLike, Objective, Vectorized, callback_of, evaluator
from hexad.rl_graph.gs_poweropt.loop import advance, budget_of, describe, finish, take_unfinished
from hexad.rl_graph.gs_poweropt.settings import Baseline, NanPolicy, Scale, Transform, count_of


def minimize_gspower(
    fun: Callable[..., Any],
    x0: Any,
    args: tuple[Any, ...] = (),
    *,
    bounds: AnyBounds = None,
    transform: Transform = "exp",
    power: float = 2.0,
    sigma: float = 1.0,
    popsize: int = 100,
    maxiter: int = 1000,
    maxfev: int | None = None,
    learning_rate: float = 0.1,
    decay: float = 1000.0,
    normalize: bool = True,
    baseline: Baseline = "mean",
    shift: float | None = None,
    scale: Scale = None,
    nan_policy: NanPolicy = "raise",
    x_scale: Any = 1.0,
    boundary: Boundary = "clip",
    evaluate_start: bool = True,
    evaluate_mean: bool = False,
    vectorized: Vectorized = False,
    workers: int | MapLike = 1,
    rng: AnyRng = None,
    callback: Callable[..., Any] | None = None,
    polish: bool = False,
    return_all: bool = False,
    interrupt: Literal["raise", "return"] = "raise",
    disp: bool = False,
    jac: Any = None,
    hess: Any = None,
    hessp: Any = None,
    constraints: Any = (),
    tol: float | None = None,
) -> OptimizeResult:
    """Minimise a black box globally by Gaussian smoothing of its power transform.

    Each step draws `popsize` samples around the iterate mu, weighs them by exp(-N fun) or (shift - fun)^N,
    and moves mu by `learning_rate` in the weighted mean's direction (Xu 2025, EPGS and PGS). Sigma stays
    fixed, so that the iterates settle, in each variable, about sigma / sqrt(popsize) from the smoothed
    objective's optimum, and no nearer: see `polish`.
    It can be given to `scipy.optimize.minimize` as `method=minimize_gspower`. Unlike SciPy's methods it
    refuses `tol` and constraints, a start outside the bounds, a start that is a single number, and bounds
    that leave a variable no room; the bounds are never left.

    Args:
        fun: fun(x, *args) -> float, x of shape (d,). It need not be deterministic; then the best value seen
            is one of luck too, and `x_mean` the better answer. A torch tensor is taken without its
            gradient, a masked value as NaN.
        x0: where to start, (d,).
        args: further arguments of fun, a tuple.
        bounds: `scipy.optimize.Bounds`, or a (min, max) for each variable, None for no bound.
        transform: `"exp"` or `"power"`. Of this and of what follows down to nan_policy `Settings` says more.
        power: N.
        sigma: standard deviation of the samples.
        popsize: K, samples in a step.
        maxiter: steps.
        maxfev: evaluations at most, start, polishing and all; no step is begun that would take more. With
            `polish` 100 evaluations a variable, but at most half, are kept for it.
        learning_rate: length of the first step.
        decay: steps after which the length is half; `inf` for a constant one.
        normalize: divide the gradient by its norm.
        baseline: `"mean"`, or `"none"` for the paper's update.
        shift: with `"power"`, f = shift - fun.
        scale: None or `"std"`.
        nan_policy: `"raise"` or `"worst"`.
        x_scale: typical size of each variable, one number or (d,): sigma and learning_rate are in its units.
        boundary: what becomes of samples outside the bounds, `"clip"` or `"reflect"`.
        evaluate_start: evaluate x0 first, so that `x` is never worse. It is one evaluation more; the samples
            are the same.
        evaluate_mean: evaluate mu too, once a step, as a candidate for `x`.
        vectorized: True if fun takes (d, K) and returns (K,), as in
            `scipy.optimize.differential_evolution`; `"rows"` if it takes (K, d), as torch and JAX models do.
        workers: processes that evaluate (-1: as many as cores), or a map-like such as `executor.map`, which
            must keep the order.
        rng: seed or `numpy.random.Generator`.
        callback: called after each step with `intermediate_result` (if that is its parameter's name) or with
            the best point; StopIteration ends the steps, and the last evaluations follow, polishing too.
        polish: search on from the best point by Nelder-Mead at the end, with at most 200 evaluations a
            variable. For a few dozen variables; in more it hardly moves.
        return_all: keep all iterates in `allvecs`.
        interrupt: on Ctrl-C `"raise"` KeyboardInterrupt, or `"return"` what was found, with what the step
            in hand had found where fun is called point by point.
        disp: print how it ended.
        jac: taken for SciPy's sake and not used.
        hess: likewise.
        hessp: likewise.
        constraints: refused; use bounds or a penalty.
        tol: refused: there is no test of convergence.

    Returns:
        `x` and `fun`: the best point evaluated and its value; `x_mean` and `fun_mean`: the mean of the last
        50 iterates and its value (one more evaluation; NaN if `maxfev` leaves none); `nit`, `nfev`,
        `nfev_polish` (the part of nfev that polishing took) and `polished`: whether Nelder-Mead converged,
        None where it was not begun; `success`, `status`, `message`; `ess`: effective samples of each step,
        (nit,), NaN where fun failed everywhere; `stalls`: steps without a direction; `accuracy`:
        sigma / sqrt(popsize) times x_scale, an array where that is one; `step_length` of the last step, in
        units of x_scale; `allvecs`: mu_0 ... mu_T, if asked for.
        `success` says that the run ended as planned, not that it found an optimum: there is no test of
        convergence.

    Warns:
        OptimizeWarning: sigma is wide for the bounds; a single sample had the weight for 20 steps.

    Raises:
        InputError: an argument makes no sense (before fun is called), fun gives NaN or inf, or no number.
        KeyboardInterrupt: on Ctrl-C, unless `interrupt="return"`.
        Exception: whatever fun or callback raises. Once fun was called, any exception has what was found
            before in its attribute `result`.
    """
    _check_scipy_arguments(jac, hess, hessp, constraints, tol)
    maxiter = count_of("maxiter", maxiter)
    for name, flag in (
        ("evaluate_start", evaluate_start), ("evaluate_mean", evaluate_mean), ("polish", polish),
        ("return_all", return_all),
    ):  # fmt: skip
        check_flag(name, flag)
    check_choice("interrupt", interrupt, ("raise", "return"))
    search = GSPower(
        x0, transform=transform, power=power, sigma=sigma, popsize=popsize, learning_rate=learning_rate,
        decay=decay, normalize=normalize, baseline=baseline, shift=shift, scale=scale, nan_policy=nan_policy,
        x_scale=x_scale, bounds=bounds, boundary=boundary, rng=rng,
    )  # fmt: skip
    budget = budget_of(search, maxiter, maxfev, evaluate_start, evaluate_mean, polish)
    stop_asked = callback_of(callback)
    objective = Objective(fun, args if isinstance(args, tuple) else (args,))
    ess: list[float] = []
    iterates = [search.mean] if return_all else []
    ending: dict[str, Any] = {"fun_mean": math.nan, "nfev_polish": 0, "polished": None}

    def after_step() -> bool:
        ess.append(search.ess)
        if return_all:
            iterates.append(search.mean)
        return stop_asked is not None and stop_asked(_intermediate(search))

    def result(status: int | None = None) -> OptimizeResult:
        found = search.result
        found.update(ending | {"ess": np.array(ess)})
        found.update({"success": False} if status is None else describe(search, status, ending))
        if return_all:
            found.allvecs = iterates
        return found

    with evaluator(objective, vectorized, workers) as evaluate:
        try:
            status = advance(search, evaluate, budget, after_step)
            ending |= finish(search, evaluate, budget)
        except KeyboardInterrupt as stop:
            take_unfinished(search, stop)
            status = 130
            if interrupt == "raise":
                vars(stop)["result"] = result(status)
                raise
        except Exception as error:
            vars(error)["result"] = result()
            raise
    found = result(status)
    if disp:
        print(f"{found.message}\nfun {found.fun:.8g} after {found.nit} steps, {found.nfev} evaluations")
    return found


def _check_scipy_arguments(jac: Any, hess: Any, hessp: Any, constraints: Any, tol: Any) -> None:
    if not (isinstance(constraints, (tuple, list)) and not constraints) and constraints is not None:
        raise InputError("constraints are not supported; give bounds, or add a penalty to fun")
    if tol is not None:
        raise InputError("tol is not supported, as there is no test of convergence; give maxiter or maxfev")
    if jac is True:
        raise InputError("jac=True is not supported; fun must return its value alone")
    if any(given is not None and given is not False for given in (jac, hess, hessp)):
        warnings.warn(
            "minimize_gspower uses no derivatives (jac, hess, hessp)", OptimizeWarning, stacklevel=3
        )


def _intermediate(search: GSPower) -> OptimizeResult:
    return OptimizeResult(
        x=search.x.copy(),
        fun=search.fun,
        mean=search.mean.copy(),
        nit=search.nit,
        nfev=search.nfev,
        ess=search.ess,
        stalls=search.stalls,
    )
