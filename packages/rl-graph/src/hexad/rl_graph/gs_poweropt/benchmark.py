"""Time of a step beyond the objective's own: `python -m hexad.rl_graph.gs_poweropt.benchmark`.

Asking and telling is timed in turns with one draw of (K, d) normal numbers, which every step needs.
"""

import json

import numpy as np

from hexad.core.environment import environment
from hexad.core.timing import interleave
from hexad.rl_graph.gs_poweropt.ask_tell import GSPower
from hexad.rl_graph.gs_poweropt.settings import count_of


def benchmark(d: int = 1000, popsize: int = 100, rounds: int = 100, seed: int = 0) -> dict[str, float]:
    """Median milliseconds of a step and of a draw, and the median of their ratio within a round.

    Args:
        d: variables.
        popsize: K, samples in a step.
        rounds: timed turns.
        seed: of noise and values.

    Raises:
        InputError: a number below 1, or a popsize below 2.
    """
    rng = np.random.default_rng(seed)
    search = GSPower(np.zeros(count_of("d", d)), popsize=popsize, rng=seed)
    values = rng.normal(size=popsize)
    noise = np.empty((popsize, d))

    def step() -> None:
        search.ask()
        search.tell(values)

    timing = interleave(
        {"step": step, "draw": lambda: rng.standard_normal(out=noise)},
        rounds=count_of("rounds", rounds),
        warmup=3,
    )
    return {
        "step": 1e3 * timing.median("step"),
        "draw": 1e3 * timing.median("draw"),
        "ratio": timing.speedup("draw", "step"),
    }


if __name__ == "__main__":
    sizes = ((10, 100), (1000, 100), (10_000, 100))
    found = {f"d={d}, K={popsize}": benchmark(d, popsize) for d, popsize in sizes}
    print(json.dumps(found | {"processor": environment()["processor"]}, indent=2))
