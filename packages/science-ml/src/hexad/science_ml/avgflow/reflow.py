"""Reflow and distillation: straighten the flow's paths, then walk them in one step.

A trained flow maps noise x0' to a conformer x1'. Training again on these pairs, along the straight line
between them, gives a flow with straighter paths (Liu, Gong and Liu, ICLR 2023); training at t = 0 alone gives
a map that needs one step. Times of reflow have a density proportional to exp(-1.2 t) (Cao et al., ICML 2025,
section 3.3).
"""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from hexad.core.errors import InputError
from hexad.core.validation import check_range
from hexad.science_ml.avgflow.batching import MoleculeBatch, MoleculeGraph, collate
from hexad.science_ml.avgflow.flow import Velocity, velocity_loss
from hexad.science_ml.avgflow.sampling import Grid, integrate, time_grid
from hexad.science_ml.avgflow.targets import Points, centre

RATE = 1.2
"""Of the density of reflow's times: early times, where paths bend most, are drawn more often."""


def reflow_times(count: int, like: Tensor, rate: float = RATE) -> Float[Tensor, " count"]:
    """Times in [0, 1) with a density proportional to exp(-rate t), by inversion."""
    uniform = torch.rand(count, dtype=like.dtype, device=like.device)
    return -torch.log1p(uniform * math.expm1(-rate)) / rate


def reflow_loss(model: Velocity, batch: MoleculeBatch, x0: Points, x1: Points) -> Float[Tensor, ""]:
    """Error of the velocity on the straight line from x0 to x1, at random times (pairs are centred)."""
    t = reflow_times(len(x0), x0)
    time = t[:, None, None]
    return velocity_loss(model((1 - time) * x0 + time * x1, t, batch), x1 - x0, batch.mask)


def distill_loss(model: Velocity, batch: MoleculeBatch, x0: Points, x1: Points) -> Float[Tensor, ""]:
    """Error of the single step x0 + v(x0, 0) from noise to conformer."""
    return velocity_loss(model(x0, torch.zeros_like(x0[:, 0, 0]), batch), x1 - x0, batch.mask)


@torch.no_grad()
def make_reflow_pairs(
    model: Velocity,
    graphs: Sequence[MoleculeGraph],
    pairs: int,
    *,
    steps: int = 100,
    grid: Grid = "uniform",
    seed: int = 0,
    sigma0: float = 1.0,
    batch_size: int = 64,
    keep: Callable[[int, Float[Tensor, "n 3"]], bool] | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> list[Float[Tensor, "_ 2 n 3"]]:
    """Pairs (x0', x1') of noise and the conformer that the flow makes of it, for each molecule.

    Args:
        model: the trained flow, with its averaged weights.
        graphs: molecules.
        pairs: for each.
        steps: of Euler.
        grid: of the times.
        seed: of the noise.
        sigma0: deviation of the noise.
        batch_size: pairs integrated together.
        keep: called with the molecule's index and x1'; a pair that it refuses is left out (a sample with the
            wrong stereochemistry teaches the wrong molecule).
        progress: called as `progress(fraction, "120 of 400 pairs")`.

    Returns:
        For each molecule its kept pairs, noise first, both centred, float32.

    Raises:
        InputError: pairs, steps or batch_size below 1, or no molecules.
    """
    for name, value in (("pairs", pairs), ("steps", steps), ("batch_size", batch_size)):
        check_range(name, value, 1)
    if not graphs:
        raise InputError("there are no molecules to make pairs of")
    times = time_grid(steps, grid)
    generator = torch.Generator().manual_seed(seed)
    places = sorted(
        (place for place in range(len(graphs)) for _ in range(pairs)), key=lambda p: graphs[p].atoms
    )
    found: list[list[Tensor]] = [[] for _ in graphs]
    for start in range(0, len(places), batch_size):
        chunk = places[start : start + batch_size]
        batch = collate([graphs[place] for place in chunk])
        x0 = sigma0 * centre(torch.randn(*batch.mask.shape, 3, generator=generator), batch.mask)

        def field(x: Tensor, t: float, batch: MoleculeBatch = batch) -> Tensor:
            return model(x, torch.full((len(x),), t), batch)

        x1 = centre(integrate(field, x0, times), batch.mask)
        for place, noise, end in zip(chunk, x0, x1, strict=True):
            n = graphs[place].atoms
            if keep is None or keep(place, end[:n]):
                found[place].append(torch.stack([noise[:n], end[:n]]))
        if progress is not None:
            done = min(start + batch_size, len(places))
            progress(done / len(places), f"{done} of {len(places)} pairs")
    return [
        torch.stack(kept) if kept else torch.empty(0, 2, graph.atoms, 3)
        for kept, graph in zip(found, graphs, strict=True)
    ]
