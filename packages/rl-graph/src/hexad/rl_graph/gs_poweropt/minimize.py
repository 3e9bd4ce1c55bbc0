"""`minimize_gspower`: the method as a function of SciPy's kind."""

import math
import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import scipy.optimize
from jaxtyping import Float
from scipy.optimize import OptimizeResult, OptimizeWarning

from hexad.core.errors import InputError
from hexad.core.validation import check_choice, check_flag
from hexad.rl_graph.gs_poweropt.ask_tell import AnyRng, GSPower
from hexad.rl_graph.gs_poweropt.box import AnyBounds, Boundary
from hexad.rl_graph.gs_poweropt.evaluation import MapLike, Objective, Vectorized, callback_of, evaluator
from hexad.rl_graph.gs_poweropt.settings import Baseline, NanPolicy, Scale, Transform, count_of

Batch = Callable[[Float[np.ndarray, "K d"]], Float[np.ndarray, " K"]]

MESSAGES = {
    0: "the number of iterations, maxiter, is reached",
    1: "the next step would take more evaluations than maxfev",
    2: "no step had a direction: fun is the same at all samples, or failed at all of them",
    99: "`callback` raised `StopIteration`",
    130: "interrupted by Ctrl-C",
}


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
    evaluate_mean: bool = False,
    vectorized: Vectorized = False,
    workers: int | MapLike = 1,
    rng: AnyRng = None,
    callback: Callable[..., Any] | None = None,
    polish: bool = False,
    return_all: bool = False,
    interrupt: Literal["raise", "return"] = "raise",
    jac: Any = None,
    hess: Any = None,
    hessp: Any = None,
    constraints: Any = (),
    tol: float | None = None,
) -> OptimizeResult:
    """Minimise a black box globally by Gaussian smoothing of its power transform.

    Each step draws `popsize` samples around the iterate mu, weighs them by exp(-N fun) or (shift - fun)^N,
    and moves mu by `learning_rate` in the weighted mean's direction (Xu 2025, EPGS and PGS). Sigma stays
    fixed, so that the iterates settle about sigma / sqrt(popsize) from an optimum, and no nearer: see
    `polish`.
    It can be given to `scipy.optimize.minimize` as `method=minimize_gspower`.

    Args:
        fun: fun(x, *args) -> float, x of shape (d,). It need not be deterministic; then the best value seen
            is one of luck too, and `x_mean` the better answer.
        x0: where to start, (d,).
        args: further arguments of fun, a tuple.
        bounds: `scipy.optimize.Bounds`, or a (min, max) for each variable, None for no bound.
        transform: `"exp"` or `"power"`. Of this and of what follows down to nan_policy `Settings` says more.
        power: N.
        sigma: standard deviation of the samples.
        popsize: K, samples in a step.
        maxiter: steps.
        maxfev: evaluations at most, polishing and all; no step is begun that would take more.
        learning_rate: length of the first step.
        decay: steps after which the length is half; `inf` for a constant one.
        normalize: divide the gradient by its norm.
        baseline: `"mean"`, or `"none"` for the paper's update.
        shift: with `"power"`, f = shift - fun.
        scale: None or `"std"`.
        nan_policy: `"raise"` or `"worst"`.
        x_scale: typical size of each variable, one number or (d,): sigma and learning_rate are in its units.
        boundary: what becomes of samples outside the bounds, `"clip"` or `"reflect"`.
        evaluate_mean: evaluate mu too, once a step, as a candidate for `x`.
        vectorized: True if fun takes (d, K) and returns (K,), as in
            `scipy.optimize.differential_evolution`; `"rows"` if it takes (K, d), as torch and JAX models do.
        workers: processes that evaluate (-1: as many as cores), or a map-like such as `executor.map`.
        rng: seed or `numpy.random.Generator`.
        callback: called after each step with `intermediate_result` (if that is its parameter's name) or with
            the best point; StopIteration ends the run.
        polish: search on from the best point by Nelder-Mead at the end.
        return_all: keep all iterates in `allvecs`.
        interrupt: on Ctrl-C `"raise"` KeyboardInterrupt, or `"return"` what was found.
        jac: taken for SciPy's sake and not used.
        hess: likewise.
        hessp: likewise.
        constraints: refused; use bounds or a penalty.
        tol: refused: there is no test of convergence.

    Returns:
        `x` and `fun`: the best point evaluated and its value; `x_mean` and `fun_mean`: the mean of the last
        50 iterates and its value (one more evaluation; NaN if `maxfev` leaves none); `nit`, `nfev`,
        `nfev_polish` (the part of nfev that polishing took); `success`, `status`, `message`; `ess`: effective
        samples of each step, (nit,), NaN where fun failed everywhere; `stalls`: steps without a direction;
        `accuracy`: sigma / sqrt(popsize); `step_length` of the last step; `allvecs`: mu_0 ... mu_T, if asked
        for.

    Raises:
        InputError: an argument makes no sense (before fun is called), fun gives NaN or inf, or no number.
        KeyboardInterrupt: on Ctrl-C, unless `interrupt="return"`.
    """
    _check_scipy_arguments(jac, hess, hessp, constraints, tol)
    maxiter = count_of("maxiter", maxiter)
    for name, flag in (("evaluate_mean", evaluate_mean), ("polish", polish), ("return_all", return_all)):
        check_flag(name, flag)
    check_choice("interrupt", interrupt, ("raise", "return"))
    search = GSPower(
        x0, transform=transform, power=power, sigma=sigma, popsize=popsize, learning_rate=learning_rate,
        decay=decay, normalize=normalize, baseline=baseline, shift=shift, scale=scale, nan_policy=nan_policy,
        x_scale=x_scale, bounds=bounds, boundary=boundary, rng=rng,
    )  # fmt: skip
    limit = check_budget(search, maxiter, maxfev, evaluate_mean, polish)
    stop_asked = callback_of(callback)
    objective = Objective(fun, args if isinstance(args, tuple) else (args,))
    ess: list[float] = []
    iterates = [search.mean] if return_all else []

    def after_step() -> bool:
        ess.append(search.ess)
        if return_all:
            iterates.append(search.mean)
        return stop_asked is not None and stop_asked(_intermediate(search))

    ending: dict[str, Any] = {"fun_mean": math.nan, "nfev_polish": 0}
    with evaluator(objective, vectorized, workers) as evaluate:
        try:
            status = advance(search, evaluate, maxiter, limit, evaluate_mean, after_step)
            ending = finish(search, evaluate, limit, polish)
        except KeyboardInterrupt:
            if interrupt == "raise" or not math.isfinite(search.fun):
                raise
            status = 130
    result = search.result
    result.update(ending | {"ess": np.array(ess)} | describe(search, status))
    if return_all:
        result.allvecs = iterates
    return result


def check_budget(
    search: GSPower, maxiter: int, maxfev: int | None, evaluate_mean: bool, polish: bool
) -> float:
    """Evaluations at most, infinite without `maxfev`.

    Raises:
        InputError: they are too few for a step, or would leave none to polish.
    """
    per_step = search.settings.popsize + evaluate_mean
    if maxfev is None:
        return math.inf
    limit = count_of("maxfev", maxfev)
    if limit < per_step:
        raise InputError(
            f"maxfev is {limit}, less than the {per_step} evaluations of one step; lower popsize"
        )
    if polish and maxiter * per_step >= limit:
        raise InputError(
            f"maxiter={maxiter} steps of {per_step} evaluations take all of maxfev={maxfev} and leave none "
            "to polish; lower maxiter"
        )
    return limit


def advance(
    search: GSPower,
    evaluate: Batch,
    maxiter: int,
    limit: float,
    evaluate_mean: bool = False,
    after_step: Callable[[], bool] = lambda: False,
) -> int:
    """Make steps until there are `maxiter`, or the next would take more than `limit` evaluations in all.

    Args:
        search: what is moved; its earlier steps count.
        evaluate: from points (K, d) to values (K,).
        maxiter: steps in all.
        limit: evaluations in all.
        evaluate_mean: evaluate mu too, once a step.
        after_step: called after each step; it says whether to stop.

    Returns:
        a key of `MESSAGES`.
    """
    while search.nit < maxiter:
        if search.nfev + search.settings.popsize + evaluate_mean > limit:
            break
        X = search.ask()
        if evaluate_mean:
            _consider(search, evaluate, search.mean)
        search.tell(evaluate(X))
        if after_step():
            return 99
    if search.nit and search.stalls == search.nit:
        return 2
    return 0 if search.nit >= maxiter else 1


def finish(search: GSPower, evaluate: Batch, limit: float, polish: bool) -> dict[str, Any]:
    """The value at `x_mean` and, if wanted, Nelder-Mead, as far as `limit` leaves evaluations for them."""
    fun_mean, polished = math.nan, 0
    if search.nfev < limit and search.nit:
        fun_mean = _consider(search, evaluate, search.x_mean)
    if polish and math.isfinite(search.fun) and search.nfev < limit:
        polished = _polish(search, evaluate, limit - search.nfev)
    return {"fun_mean": fun_mean, "nfev_polish": polished}


def describe(search: GSPower, status: int) -> dict[str, Any]:
    """How the run ended, in SciPy's words, and how near to an optimum it can be."""
    accuracy, length = search.settings.accuracy, search.result.step_length
    return {
        "status": status,
        "success": status in (0, 1),
        "message": (
            f"{MESSAGES[status]}; iterates settle about sigma/sqrt(popsize) = {accuracy:.3g} or the step "
            f"length, {length:.3g}, from an optimum, whichever is larger"
        ),
    }


def _check_scipy_arguments(jac: Any, hess: Any, hessp: Any, constraints: Any, tol: Any) -> None:
    if not (isinstance(constraints, (tuple, list)) and not constraints) and constraints is not None:
        raise InputError("constraints are not supported; give bounds, or add a penalty to fun")
    if tol is not None:
        raise InputError("tol is not supported, as there is no test of convergence; give maxiter or maxfev")
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


def _consider(search: GSPower, evaluate: Batch, x: Float[np.ndarray, " d"]) -> float:
    value = float(evaluate(x[None])[0])
    search.consider(x, value if math.isfinite(value) else math.inf)
    return value


def _polish(search: GSPower, evaluate: Batch, budget: float) -> int:
    """Nelder-Mead from the best point; how many evaluations it took."""
    before = search.nfev
    box = search.box

    def fun(x: Float[np.ndarray, " d"]) -> float:
        value = _consider(search, evaluate, x)
        return value if math.isfinite(value) else 1e300

    options = {"adaptive": True, "maxfev": int(min(budget, 200 * len(search.x)))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizeWarning)  # of x0 on a face of the box
        scipy.optimize.minimize(
            fun,
            search.x,
            method="nelder-mead",
            bounds=None if box is None else scipy.optimize.Bounds(box.lower, box.upper),
            options=options,
        )
    return search.nfev - before
