"""What the study measures: a sweep of N, attacks on a classifier, and fits where the method loses."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hexad.core.files import atomic_path
from hexad.core.studies import Measurement, Trial
from hexad.core.timing import interleave
from hexad.rl_graph.gs_poweropt.minimize import minimize_gspower
from hexad.rl_graph.gs_poweropt.study_arms import SEARCHES, Settings, grid_of, search, tuned
from hexad.rl_graph.gs_poweropt.study_problems import (
    FITS,
    HIT,
    Counted,
    Problem,
    attack,
    fitted_network,
    two_log,
)

AT_GLOBAL = 0.02
"""Mean squared error to the global peak within which a start has found it."""
FLOOR = 1e-6
"""Values below this count as this: the optimum is found, and one more digit is no merit."""
SHIFT = 10.0
"""The paper's shift of two-log for PGS."""
TWO_LOG: dict[str, Settings] = {
    "gspower": {},
    "paper": {"baseline": "none"},
    "pgs": {"transform": "power", "shift": SHIFT, "baseline": "none", "decay": 5000.0},
    "smoothing": {},
}
"""How the arms that smooth differ on two-log; sigma 1 and the rates are the paper's."""


@dataclass(frozen=True)
class Config:
    """How much is measured.

    Args:
        powers: N of EPGS on two-log in two dimensions.
        pgs_powers: N of PGS there.
        starts: starting points a seed.
        steps: steps of K = 100.
        deep_powers: N in five dimensions.
        deep_starts: starting points there.
        deep_steps: steps of K = 2000.
        images: attacked a seed; 0 for no attack.
        queries: of an attack.
        timings: rounds of timing an attack beside that of `gspower`.
        repeats: fits of each problem a seed; 0 for none.
        evaluations: of a fit.
        first_seed: added to the trial's seed.
        grid: try all settings of the grid instead of the tuned one (the sweep).
    """

    powers: tuple[float, ...] = (0.5, 1.0, 2.0, 3.0, 4.0)
    pgs_powers: tuple[float, ...] = (10.0, 30.0, 55.0)
    starts: int = 4
    steps: int = 500
    deep_powers: tuple[float, ...] = (1.0, 3.0, 4.0)
    deep_starts: int = 2
    deep_steps: int = 1000
    images: int = 6
    queries: int = 3000
    timings: int = 5
    repeats: int = 2
    evaluations: int = 4000
    first_seed: int = 0
    grid: bool = False


def _paths(dimension: int, arm: str, power: float, popsize: int, steps: int, starts: int, seed: int) -> Any:
    """Squared errors of `x_mean` to the global peak, a variable, and mean ESS, for each start."""
    for start in range(starts):
        rng = np.random.default_rng([seed, dimension, start])
        found = minimize_gspower(
            two_log, rng.uniform(-1, 1, dimension), vectorized="rows", power=power, popsize=popsize,
            maxiter=steps, rng=rng, evaluate_start=False, **TWO_LOG[arm],
        )  # fmt: skip
        yield float(np.square(found.x_mean + 0.5).mean()), float(found.ess.mean()), found.accuracy


def measure_two_log(trial: Trial, arm: str, seed: int) -> Iterator[Measurement]:
    """The N-sweep, in two dimensions and in five."""
    config: Config = trial.config
    powers = {"pgs": config.pgs_powers, "smoothing": (1e-9,)}.get(arm, config.powers)
    sizes: list[tuple[int, float, int, int, int]] = [
        (2, power, 100, config.steps, config.starts) for power in powers
    ]
    if arm in ("gspower", "paper"):
        sizes += [(5, power, 2000, config.deep_steps, config.deep_starts) for power in config.deep_powers]
    for place, (dimension, power, popsize, steps, starts) in enumerate(sizes):
        name = "0" if power < 1e-6 else f"{power:g}"
        case = f"two-log-{dimension}/N={name}"
        trial.progress(0.4 * place / len(sizes), case)
        errors, ess, accuracy = np.array([*_paths(dimension, arm, power, popsize, steps, starts, seed)]).T
        yield Measurement("mse", float(errors.mean()), case)
        yield Measurement("at_global", float((errors <= AT_GLOBAL).mean()), case)
        yield Measurement("settled", float(np.sqrt(errors.mean()) / accuracy[0]), case)
        yield Measurement("ess", float(ess.mean()), case)


def _attack_once(arm: str, problem: Problem, seed: int, settings: Settings, queries: int) -> Counted:
    counted = Counted(problem, queries)
    search(arm, counted, seed, settings)
    return counted


def measure_attacks(trial: Trial, arm: str, seed: int) -> Iterator[Measurement]:
    """Targeted attacks; a failed one counts with the norm of its whole image."""
    config: Config = trial.config
    network = fitted_network(seed, config.images)
    whole = np.linalg.norm(network.images, axis=1)
    tried = grid_of(arm, "attack") if config.grid else [tuned(arm, "attack")]
    for number, settings in enumerate(tried):
        deltas = np.zeros_like(network.images)
        norms, ess = np.zeros(config.images), []
        for place in range(config.images):
            share = (number + place / config.images) / len(tried)
            trial.progress(0.4 + 0.3 * share, f"attack {place + 1} of {config.images}")
            counted = Counted(attack(seed, place, config.images), config.queries)
            ess += search(arm, counted, seed, settings)
            if counted.attack is not None:
                deltas[place] = counted.attack
            norms[place] = counted.norm
        succeeded = np.isfinite(norms)
        counted_norms = np.where(succeeded, norms, whole)
        if config.grid:
            yield Measurement("score", float(counted_norms.mean()), f"attack/{number}")
            continue
        yield Measurement("success", float(succeeded.mean()), "attack")
        yield Measurement("norm", float(counted_norms.mean()), "attack")
        if ess:
            yield Measurement("ess", float(np.mean(ess)), "attack")
        with atomic_path(trial.folder / "attacks.npz") as temporary:
            np.savez(temporary, images=network.images, deltas=deltas, targets=network.targets, norms=norms)
        yield Measurement("time", _relative_time(arm, seed, settings, config), "attack")


def _relative_time(arm: str, seed: int, settings: Settings, config: Config) -> float:
    """Time of an attack over that of one by `gspower`, both in turns."""
    problem = attack(seed, 0, config.images)
    runs: dict[str, Callable[[], object]] = {
        name: lambda name=name, chosen=chosen: _attack_once(name, problem, seed, chosen, config.queries)
        for name, chosen in ((arm, settings), ("gspower", tuned("gspower", "attack")))
    }
    if arm == "gspower":
        return 1.0
    return 1 / interleave(runs, rounds=config.timings, warmup=1).speedup(arm, "gspower")


def measure_fits(trial: Trial, arm: str, seed: int) -> Iterator[Measurement]:
    """Sunspots, Rastrigin and Griewank at equal evaluations."""
    config: Config = trial.config
    for order, (name, make) in enumerate(FITS.items()):
        tried = grid_of(arm, name) if config.grid else [tuned(arm, name)]
        for number, settings in enumerate(tried):
            best = np.zeros(config.repeats)
            for repeat in range(config.repeats):
                share = (order + (number + repeat / config.repeats) / len(tried)) / len(FITS)
                trial.progress(0.7 + 0.3 * share, name)
                own = 1000 * seed + repeat
                counted = Counted(make(own), config.evaluations)
                search(arm, counted, own, settings)
                best[repeat] = counted.best
            logs = float(np.log10(np.maximum(best, FLOOR)).mean())
            if config.grid:
                score = float(best.mean()) if name == "sunspots" else logs
                yield Measurement("score", score, f"{name}/{number}")
            elif name == "sunspots":
                yield Measurement("hit", float((1 - best >= HIT).mean()), name)
                yield Measurement("r2", float((1 - best).mean()), name)
            else:
                yield Measurement("log_value", logs, name)


def run(trial: Trial, name: str) -> Iterator[Measurement]:
    """Measure an arm at one seed."""
    config: Config = trial.config
    seed = config.first_seed + trial.seed
    if name in TWO_LOG and config.starts:
        yield from measure_two_log(trial, name, seed)
    if name in SEARCHES and config.images:
        yield from measure_attacks(trial, name, seed)
    if name in SEARCHES and name != "nevergrad" and config.repeats:
        yield from measure_fits(trial, name, seed)
