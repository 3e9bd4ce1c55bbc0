"""What is drawn for the networks to regress on, for each objective and interpolant."""

import math

import pytest
import torch

from hexad.core.errors import InputError
from hexad.science_ml.avgflow.flow import T_MAX, FlowMatcher, velocity_loss
from hexad.science_ml.avgflow.rotations import align
from hexad.science_ml.avgflow.targets import averaged_velocity, centre

COUNT = 4000


@pytest.fixture
def conformers():
    """The same conformer of seven atoms, many times, and a mask that leaves two places empty."""
    generator = torch.Generator().manual_seed(3)
    X = torch.zeros(COUNT, 9, 3, dtype=torch.float64)
    X[:, :7] = centre(1.5 * torch.randn(7, 3, generator=generator, dtype=torch.float64))
    mask = torch.zeros(COUNT, 9, dtype=torch.bool)
    mask[:, :7] = True
    torch.manual_seed(0)
    return X, mask


@pytest.mark.parametrize("interpolant", ["random_rotation", "linear", "ode"])
def test_averaged_objective_regresses_on_the_exact_velocity(conformers, interpolant):
    X, mask = (tensor[:20] for tensor in conformers)
    t, x, u = FlowMatcher("avg", interpolant).draw(X, mask)
    torch.testing.assert_close(u, averaged_velocity(x, X, t, mask=mask), rtol=0, atol=1e-10)
    assert (x[:, 7:] == 0).all()
    assert x.mean(dim=1).abs().max() < 1e-12


def test_conditional_target_averages_to_the_exact_velocity(conformers):
    # E[X Q - x0 | x_t] = u(t, x_t): so for any function f of x_t the products with f have the same mean.
    X, mask = conformers
    t = torch.full((COUNT,), 0.5, dtype=torch.float64)
    _, x, conditional = FlowMatcher("cond_ot").draw(X, mask, t=t)
    exact = averaged_velocity(x, X, t, mask=mask)
    spread = (conditional - exact).square().sum((1, 2)).mean()
    assert spread > 1  # the variance that averaging removes (card 6 B)
    for probe in (exact, x, torch.tanh(x)):
        products = ((conditional - exact) * probe).sum((1, 2))
        assert abs(products.mean()) < 4 * products.std() / math.sqrt(COUNT)


def test_random_rotation_leaves_no_preferred_orientation(conformers):
    X, mask = conformers
    t = torch.full((COUNT,), 0.95, dtype=torch.float64)
    for interpolant, haar in (("random_rotation", True), ("linear", False)):
        _, x, _ = FlowMatcher("avg", interpolant).draw(X, mask, t=t)
        trace = align(x, X)[1].diagonal(dim1=1, dim2=2).sum(1)
        # Standard error 0.016; unrotated conformers have a trace near 3.
        assert (abs(trace.mean()) < 0.08) == haar


def test_kabsch_turns_the_conformer_onto_the_noise(conformers):
    X, mask = (tensor[:50] for tensor in conformers)
    t, x, u = FlowMatcher("kabsch").draw(X, mask)
    x0 = x - t[:, None, None] * u
    turned, _ = align(x0, X)
    torch.testing.assert_close(x0 + u, turned, rtol=0, atol=1e-10)


def test_conformers_are_drawn_by_weight(conformers):
    X, mask = conformers
    X = torch.stack([X, 2 * X, 3 * X], dim=1)
    weights = torch.tensor([[1.0, 3.0, 0.0]]).expand(COUNT, -1)
    t = torch.full((COUNT,), 0.99, dtype=torch.float64)
    _, x, _ = FlowMatcher("avg").draw(X, mask, weights, t)
    size = x.square().sum((1, 2)).sqrt() / X[:, 0].square().sum((1, 2)).sqrt()
    assert (size < 2.5).all()
    assert (size > 1.5).float().mean() == pytest.approx(0.75, abs=0.03)


def test_times_have_their_distributions():
    torch.manual_seed(0)
    like = torch.zeros(1, dtype=torch.float64)
    uniform = FlowMatcher(times="uniform").sample_times(40_000, like) / T_MAX
    mixed = FlowMatcher(times="mixed").sample_times(40_000, like) / T_MAX
    assert uniform.max() < 1
    assert uniform.mean() == pytest.approx(0.5, abs=0.01)
    # Beta(1.9, 1) has the mean 1.9 / 2.9 and P(t < 1/2) = 0.5^1.9.
    assert mixed.mean() == pytest.approx(0.1 * 0.5 + 0.9 * 1.9 / 2.9, abs=0.01)
    assert (mixed < 0.5).double().mean() == pytest.approx(0.1 * 0.5 + 0.9 * 0.5**1.9, abs=0.01)


def test_noise_and_times_are_independent(conformers):
    X, mask = conformers
    t, x, u = FlowMatcher("cond_ot", "linear").draw(X, mask)
    x0 = x - t[:, None, None] * u
    size = x0.square().sum((1, 2))
    # One key for both would correlate them (the released code's slip).
    correlation = torch.corrcoef(torch.stack([t, size]))[0, 1]
    assert abs(correlation) < 4 / math.sqrt(COUNT)
    # Centred noise of 7 atoms has 18 degrees of freedom.
    assert size.mean() == pytest.approx(18, abs=0.4)


def test_loss_counts_atoms_not_places():
    v, u = torch.zeros(2, 4, 3), torch.ones(2, 4, 3)
    mask = torch.tensor([[True, True, False, False], [True] * 4])
    assert velocity_loss(v, u, mask) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "average"}, "unknown objective 'average'"),
        ({"interpolant": "spline"}, "unknown interpolant 'spline'"),
        ({"times": "late"}, "unknown times 'late'"),
        ({"objective": "cond_ot", "interpolant": "ode"}, "follows the averaged field"),
        ({"objective": "kabsch", "sigma1": 0.1}, "needs sigma1=0"),
        ({"sigma0": -1.0}, "sigma0"),
        ({"sigma1": 1.5}, "sigma1"),
    ],
)
def test_nonsense_is_refused(settings, message):
    with pytest.raises(InputError, match=message):
        FlowMatcher(**settings)
