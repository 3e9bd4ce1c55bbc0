"""Solvers beside closed forms, and the exact field (card 6 A): it must end on rotated copies,
Haar-distributed."""

import itertools
import math

import pytest
import torch

from hexad.core.errors import InputError
from hexad.science_ml.avgflow.rotations import align
from hexad.science_ml.avgflow.sampling import integrate, time_grid
from hexad.science_ml.avgflow.targets import averaged_velocity, centre


def test_uniform_grid_is_uniform():
    assert time_grid(4) == [0, 0.25, 0.5, 0.75, 1]
    assert time_grid(2, end=0.999) == pytest.approx([0, 0.4995, 0.999])


def test_log_grid_is_dense_near_the_end():
    grid = time_grid(10, "log")
    assert len(grid) == 11
    assert grid[0] == 0
    assert grid[-2:] == pytest.approx([0.999, 1.0])
    steps = [b - a for a, b in itertools.pairwise(grid[:-1])]
    # Distances to the end shrink by 10^(-2/9) a step: so do the steps themselves.
    assert [b / a for a, b in itertools.pairwise(steps)] == pytest.approx([10 ** (-2 / 9)] * 8)


@pytest.mark.parametrize(("solver", "order"), [("euler", 1), ("tsit5", 5)])
def test_solvers_have_their_order_on_a_linear_field(solver, order):
    x0 = torch.tensor([[1.0, 2.0, -1.0]], dtype=torch.float64)

    def error(steps):
        # dx/dt = x cos t has the solution x0 exp(sin t).
        found = integrate(lambda x, t: x * math.cos(t), x0, time_grid(steps), solver)
        return float((found - x0 * math.exp(math.sin(1))).abs().max())

    # Halving the step divides the error by 2^order; a wrong coefficient drops an order.
    assert math.log2(error(8) / error(16)) == pytest.approx(order, abs=0.35)


def test_exact_field_ends_on_rotations_of_the_conformer_that_are_haar():
    generator = torch.Generator().manual_seed(0)
    count, atoms = 2000, 9
    X = centre(1.5 * torch.randn(atoms, 3, generator=generator, dtype=torch.float64)).expand(count, -1, -1)
    x0 = centre(torch.randn(count, atoms, 3, generator=generator, dtype=torch.float64))

    def field(x, t):
        return averaged_velocity(x, X, torch.full((count,), t, dtype=torch.float64), centred=True)

    ends = integrate(field, x0, time_grid(20, end=0.999))
    turned, R = align(ends, X)
    rmsd = (ends - turned).square().sum(-1).mean(-1).sqrt().mean()
    trace = R.diagonal(dim1=1, dim2=2).sum(1)
    # The cut at t = 0.999 alone leaves 0.0026; 5 steps leave 0.0086 (card 6 A). Haar: E tr = 0, E tr^2 = 1.
    assert rmsd < 0.004
    assert abs(trace.mean()) < 0.07
    assert 0.85 < trace.square().mean() < 1.15


def test_bad_input_is_refused():
    with pytest.raises(InputError, match="steps is 0"):
        time_grid(0)
    with pytest.raises(InputError, match="unknown grid 'cosine'"):
        time_grid(3, "cosine")
    with pytest.raises(InputError, match=r"end is 1\.5"):
        time_grid(3, end=1.5)
    with pytest.raises(InputError, match="unknown solver 'rk4'"):
        integrate(lambda x, t: x, torch.zeros(1, 3), [0.0, 1.0], "rk4")
