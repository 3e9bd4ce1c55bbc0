"""Time of the target operation: `python -m hexad.science_ml.avgflow.benchmark`.

The mean of a matrix Fisher distribution is needed once a molecule, conformer and step. It is timed beside its
own singular value decomposition, a floor that any closed form pays, and beside the same quadrature with
Bessel functions evaluated at every node, all in one run and in turns.
"""

import json

import torch

from hexad.core.environment import environment
from hexad.core.timing import interleave
from hexad.core.validation import check_range
from hexad.science_ml.avgflow.quadrature import evaluate, rule
from hexad.science_ml.avgflow.rotations import NODES, matrix_fisher_mean
from hexad.science_ml.avgflow.targets import averaged_velocity


def benchmark(count: int = 256, atoms: int = 24, rounds: int = 30, seed: int = 0) -> dict[str, float]:
    """Median milliseconds for `count` matrices, or molecules of `atoms` atoms.

    Raises:
        InputError: a count, number of atoms or of rounds below 1.
    """
    for name, value in (("count", count), ("atoms", atoms), ("rounds", rounds)):
        check_range(name, value, 1)
    generator = torch.Generator().manual_seed(seed)
    F = 20 * torch.randn(count, 3, 3, generator=generator, dtype=torch.float64)
    x, X = torch.randn(2, count, atoms, 3, generator=generator).unbind(0)
    t = torch.rand(count, generator=generator)
    nodes = rule(NODES, F.device).x
    arguments = torch.rand(2 * count, 1, generator=generator, dtype=torch.float64) * 60
    timing = interleave(
        {
            "matrix_fisher_mean": lambda: matrix_fisher_mean(F),
            "svd alone": lambda: torch.linalg.svd(F),
            "bessel functions evaluated": lambda: evaluate(arguments * nodes),
            "averaged_velocity": lambda: averaged_velocity(x, X, t),
        },
        rounds=rounds,
        warmup=3,
    )
    return {name: 1e3 * timing.median(name) for name in timing.seconds}


if __name__ == "__main__":
    found = {"count": 256, "threads": torch.get_num_threads(), "ms": benchmark()}
    print(json.dumps(found | {"processor": environment()["processor"]}, indent=2))
