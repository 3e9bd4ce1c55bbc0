"""The study's optimisers behind one call, and the settings that each was tried with and runs with."""

import math
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from hexad.rl_graph.gs_poweropt.minimize import minimize_gspower
from hexad.rl_graph.gs_poweropt.study_problems import Counted, SpentError

Settings = dict[str, Any]

NEARLY_ZERO = 1e-9
"""A power so small that the method is the smoothing of fun itself, a classic evolution strategy."""


def smooth(counted: Counted, seed: int, settings: Settings) -> list[float]:
    """This package's optimiser; `polish` leaves 100 evaluations a variable to Nelder-Mead. Gives the ESS."""
    problem = counted.problem
    box: Settings = {}
    if problem.lower is not None and problem.upper is not None:
        box = {"bounds": [*zip(problem.lower, problem.upper, strict=True)], "scale": "std"}
        box["x_scale"] = problem.upper - problem.lower
    kept = min(100 * len(problem.x0), counted.budget // 2) if settings.get("polish") else 0
    found = minimize_gspower(
        counted.rows, problem.x0, vectorized="rows", rng=seed, maxfev=counted.budget, evaluate_start=False,
        maxiter=(counted.budget - kept) // settings["popsize"], **(box | settings),
    )  # fmt: skip
    return found.ess.tolist()


def cma_es(counted: Counted, seed: int, settings: Settings) -> None:
    """pycma, asked and told in batches, begun again with twice the population where it stops (IPOP)."""
    import cma

    problem = counted.problem
    rng = np.random.default_rng(seed)
    x0, scale, restart = problem.x0, 1.0, 0
    options: Settings = {"verbose": -9}
    if problem.lower is not None and problem.upper is not None:
        options |= {"bounds": [problem.lower.tolist(), problem.upper.tolist()]}
        scale = float((problem.upper - problem.lower)[0])
    popsize = settings["popsize"] or 4 + int(3 * math.log(len(x0)))
    while True:
        more = {"popsize": popsize * 2**restart, "seed": seed + restart + 1}
        es = cma.CMAEvolutionStrategy(x0, scale * settings["sigma"], options | more)
        while not es.stop():
            X = es.ask()
            es.tell(X, counted.rows(np.array(X)).tolist())
        restart += 1
        if problem.lower is not None and problem.upper is not None:
            x0 = rng.uniform(problem.lower, problem.upper)


def nevergrad_default(counted: Counted, seed: int, settings: Settings) -> None:
    """Nevergrad's default optimiser, NGOpt, its surrogate models mended.

    With NumPy 2.4 nevergrad 1.0.12 stops in them at `float()` of an array of one number, which NumPy now
    refuses; the name is given a meaning within that module that takes it.
    """
    from unittest.mock import patch

    import nevergrad as ng
    from nevergrad.optimization import metamodel

    problem = counted.problem
    space = ng.p.Array(init=problem.x0).set_mutation(sigma=settings["sigma"])
    space.random_state.seed(seed)
    optimizer = ng.optimizers.NGOpt(parametrization=space, budget=counted.budget, num_workers=1)
    with patch.object(metamodel, "float", lambda number: np.asarray(number).item(), create=True):
        while True:
            candidate = optimizer.ask()
            optimizer.tell(candidate, counted.one(candidate.value))


def _box_around(counted: Counted, settings: Settings) -> tuple[list[tuple[float, float]], Settings]:
    """The problem's box, or one of the radius among the settings; and the settings that are left."""
    rest = {key: value for key, value in settings.items() if key != "radius"}
    problem = counted.problem
    if problem.lower is not None and problem.upper is not None:
        return [*zip(problem.lower, problem.upper, strict=True)], rest
    radius = settings["radius"]
    return [(x - radius, x + radius) for x in problem.x0], rest


def annealing(counted: Counted, seed: int, settings: Settings) -> None:
    """SciPy's dual annealing."""
    from scipy.optimize import dual_annealing

    box, rest = _box_around(counted, settings)
    x0 = counted.problem.x0
    while True:  # should it end before the evaluations do
        dual_annealing(counted.one, box, rng=seed, x0=x0, maxfun=2 * counted.budget, maxiter=10**6, **rest)
        seed += 1


def evolution(counted: Counted, seed: int, settings: Settings) -> None:
    """SciPy's differential evolution."""
    from scipy.optimize import differential_evolution

    box, rest = _box_around(counted, settings)
    while True:
        differential_evolution(
            counted.one, box, rng=seed, x0=counted.problem.x0, maxiter=10**6, tol=0, **rest
        )
        seed += 1


def at_random(counted: Counted, seed: int, settings: Settings) -> None:
    """Uniform in the box; without one, Gaussian around the start."""
    problem = counted.problem
    rng = np.random.default_rng(seed)
    while True:
        shape = (100, len(problem.x0))
        if problem.lower is None or problem.upper is None:
            counted.rows(problem.x0 + settings["sigma"] * rng.normal(size=shape))
        else:
            counted.rows(rng.uniform(problem.lower, problem.upper, shape))


SEARCHES: dict[str, Callable[[Counted, int, Settings], Any]] = {
    "gspower": smooth,
    "paper": smooth,
    "smoothing": smooth,
    "cma": cma_es,
    "nevergrad": nevergrad_default,
    "dual-annealing": annealing,
    "differential-evolution": evolution,
    "random": at_random,
}


def search(arm: str, counted: Counted, seed: int, settings: Settings) -> list[float]:
    """Let an arm spend its evaluations; gives the effective samples of its steps, if it has such."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return SEARCHES[arm](counted, seed, settings) or []
    except SpentError:
        return []


def _grid(**axes: tuple[Any, ...]) -> list[Settings]:
    return [dict(zip(axes, point, strict=True)) for point in product(*axes.values())]


def _with(grid: list[Settings], **more: Any) -> list[Settings]:
    return [settings | more for settings in grid]


# Eight settings are tried for each arm on each problem; uniform random search has none to try.
_ATTACK = _grid(power=(2.0, 8.0), sigma=(0.05, 0.1), learning_rate=(0.01, 0.03))
_FIT = _grid(power=(1.0, 4.0), sigma=(0.03, 0.1), learning_rate=(0.02, 0.1))
_SIGMAS = (0.02, 0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
GRIDS: dict[str, dict[str, list[Settings]]] = {
    "gspower": {
        "attack": _with(_ATTACK, popsize=10),
        "fit": _with(_FIT, popsize=20, polish=True),
    },
    "paper": {
        "attack": _with(_ATTACK, popsize=10, baseline="none"),
        "fit": _with(_FIT, popsize=20, polish=True, baseline="none"),
    },
    "smoothing": {
        "attack": _with(
            _grid(popsize=(10, 20), sigma=(0.05, 0.1), learning_rate=(0.01, 0.03)), power=NEARLY_ZERO
        ),
        "fit": _with(
            _grid(popsize=(20, 50), sigma=(0.03, 0.1), learning_rate=(0.02, 0.1)),
            power=NEARLY_ZERO,
            polish=True,
        ),
    },
    "cma": {
        "attack": _grid(sigma=(0.05, 0.1, 0.2, 0.4), popsize=(0, 40)),
        "fit": _grid(sigma=(0.05, 0.15, 0.25, 0.4), popsize=(0, 40)),
    },
    "nevergrad": {"attack": _grid(sigma=_SIGMAS)},
    "dual-annealing": {
        "attack": _grid(radius=(0.25, 0.5, 1.0, 2.0), no_local_search=(False, True)),
        "fit": _grid(initial_temp=(5230.0, 100.0), visit=(2.62, 2.2), no_local_search=(False, True)),
    },
    "differential-evolution": {
        "attack": _grid(radius=(0.25, 0.5, 1.0, 2.0), popsize=(1, 3)),
        "fit": _grid(popsize=(5, 15), strategy=("best1bin", "rand1bin"), mutation=((0.5, 1.0), (0.3, 0.6))),
    },
    "random": {"attack": _grid(sigma=_SIGMAS), "fit": [{}]},
}

TUNED: dict[str, dict[str, int]] = {
    "gspower": {"attack": 1, "sunspots": 7, "rastrigin": 3, "griewank": 4},
    "paper": {"attack": 5, "sunspots": 3, "rastrigin": 3, "griewank": 0},
    "smoothing": {"attack": 1, "sunspots": 3, "rastrigin": 2, "griewank": 0},
    "cma": {"attack": 2, "sunspots": 3, "rastrigin": 1, "griewank": 6},
    "nevergrad": {"attack": 5},
    "dual-annealing": {"attack": 2, "sunspots": 7, "rastrigin": 6, "griewank": 2},
    "differential-evolution": {"attack": 2, "sunspots": 2, "rastrigin": 1, "griewank": 1},
    "random": {"attack": 6, "sunspots": 0, "rastrigin": 0, "griewank": 0},
}
"""Which setting of the grid each arm runs with on each problem: the best of the sweep (see `sweep`)."""


def grid_of(arm: str, problem: str) -> list[Settings]:
    """The settings that were tried."""
    return GRIDS[arm]["attack" if problem == "attack" else "fit"]


def tuned(arm: str, problem: str) -> Settings:
    """The setting that an arm runs with."""
    return grid_of(arm, problem)[TUNED[arm][problem]]
