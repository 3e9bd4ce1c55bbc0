"""The averaged target beside importance sampling, its limits, and the symmetries it must have."""

import pytest
import torch

from hexad.core.errors import InputError
from hexad.science_ml.avgflow.rotations import align, random_rotations
from hexad.science_ml.avgflow.targets import (
    averaged_target,
    averaged_velocity,
    centre,
    integration_interpolant,
    kabsch_target,
)


def gaussian(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def clouds():
    """Noise-like x and three conformers X of four molecules of nine atoms, centred."""
    x, X = centre(gaussian(4, 9, 3)), centre(1.5 * gaussian(4, 3, 9, 3, seed=1))
    return x, X, torch.tensor([0.1, 0.3, 0.5, 0.8], dtype=torch.float64)


def posterior_by_importance(x, X, t, weights, sigma0, sigma1, count=400_000):
    """xbar of one molecule by Haar-random rotations, weighted with the Gaussian density of x."""
    R = random_rotations(count, torch.Generator().manual_seed(5), torch.float64)
    sigma = (1 - t) * sigma0 + t * sigma1
    logits, means = [], []
    for conformer, weight in zip(X, weights, strict=True):
        rotated = conformer @ R.mT
        logits.append(weight.log() - (x - t * rotated).square().sum((-1, -2)) / (2 * sigma**2))
        means.append(rotated)
    density = torch.cat(logits).softmax(0)
    rotated = torch.cat(means)
    effective = 1 / density.square().sum()
    return torch.einsum("r,rni->ni", density, rotated), effective


@pytest.mark.parametrize("sigma1", [0.0, 0.2])
def test_importance_sampled_rotations_give_the_same_velocity(clouds, sigma1):
    x, X, t = clouds
    weights = torch.tensor([[1.0, 2.0, 0.5]] * 4, dtype=torch.float64)
    # Conformers of one molecule resemble each other, so that all keep some posterior weight.
    X = X[:, :1] + 0.2 * (X - X[:, :1])
    found = averaged_velocity(x, X, t, weights, sigma1=sigma1)
    for k in range(2):
        xbar, effective = posterior_by_importance(x[k], X[k], t[k], weights[k], 1.0, sigma1)
        sigma = 1 - t[k] + t[k] * sigma1
        expected = xbar + (sigma1 - 1.0) / sigma * (x[k] - t[k] * xbar)
        # Eight standard errors of a coordinate; at least 1 000 of the samples must count.
        assert effective > 1_000
        tolerance = 8 * 3.0 / effective.sqrt().item()
        assert (found[k] - expected).abs().max() < tolerance
        assert tolerance < 0.8


def test_importance_sampling_settles_the_weight_of_conformers_of_unlike_size(clouds):
    x, X, _ = clouds
    t = torch.tensor([0.15], dtype=torch.float64)
    # The second conformer is half as large: without |X_k|^2 in its posterior weight the larger one would take
    # all.
    two = torch.stack([X[0, 0], 0.5 * X[0, 0]])
    xbar, effective = posterior_by_importance(x[0], two, t[0], torch.ones(2, dtype=torch.float64), 1.0, 0.0)
    found = averaged_target(x[:1], two[None], t)[0]
    assert effective > 10_000
    assert (found - xbar).abs().max() < 8 * 3.0 / effective.sqrt().item()


def test_simple_form_holds_where_sigma1_is_zero(clouds):
    x, X, t = clouds
    xbar = averaged_target(x, X, t)
    expected = (xbar - x) / (1 - t)[:, None, None]
    torch.testing.assert_close(averaged_velocity(x, X, t), expected, rtol=0, atol=1e-12)


def test_at_time_zero_the_velocity_is_minus_x(clouds):
    x, X, t = clouds
    torch.testing.assert_close(averaged_velocity(x, X, 0 * t), -x, rtol=0, atol=1e-13)


def test_near_time_one_the_target_is_the_kabsch_alignment(clouds):
    _, X, t = clouds
    X = X[:, 0]
    turned = X @ random_rotations(4, torch.Generator().manual_seed(3), torch.float64)
    x = centre(turned + 1e-3 * gaussian(4, 9, 3, seed=7))
    xbar = averaged_target(x, X, torch.full_like(t, 0.999))
    # Rotations spread by about 1e-3 / |X|; their mean shrinks by its square.
    torch.testing.assert_close(xbar, align(x, X)[0], rtol=0, atol=2e-6)
    torch.testing.assert_close(kabsch_target(x, X), align(x, X)[0], rtol=0, atol=1e-12)


def test_turning_x_turns_the_velocity(clouds):
    x, X, t = clouds
    Q = random_rotations(4, torch.Generator().manual_seed(2), torch.float64)
    torch.testing.assert_close(
        averaged_velocity(x @ Q, X, t), averaged_velocity(x, X, t) @ Q, rtol=0, atol=1e-10
    )


def test_turning_the_conformers_changes_nothing(clouds):
    x, X, t = clouds
    Q = random_rotations(12, torch.Generator().manual_seed(2), torch.float64).view(4, 3, 3, 3)
    torch.testing.assert_close(averaged_velocity(x, X @ Q, t), averaged_velocity(x, X, t), rtol=0, atol=1e-10)


def test_mirroring_the_conformers_changes_the_velocity(clouds):
    # The average is over proper rotations alone: a mirror image is another molecule.
    x, X, t = clouds
    assert (averaged_velocity(x, -X, t) - averaged_velocity(x, X, t)).abs().max() > 0.1


def test_permuting_atoms_permutes_the_velocity(clouds):
    x, X, t = clouds
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    expected = averaged_velocity(x, X, t)[:, order]
    torch.testing.assert_close(
        averaged_velocity(x[:, order], X[:, :, order], t), expected, rtol=0, atol=1e-12
    )


def test_padding_has_no_effect(clouds):
    x, X, t = clouds
    mask = torch.ones(4, 14, dtype=torch.bool)
    mask[:, 9:] = False
    # What lies in the padding must not matter either.
    padded_x = torch.cat([x, 7 + gaussian(4, 5, 3)], dim=1)
    padded_X = torch.cat([X, 7 + gaussian(4, 3, 5, 3)], dim=2)
    found = averaged_velocity(padded_x, padded_X, t, mask=mask)
    torch.testing.assert_close(found[:, :9], averaged_velocity(x, X, t), rtol=0, atol=1e-12)
    assert (found[:, 9:] == 0).all()


def test_a_conformer_of_weight_zero_is_none(clouds):
    x, X, t = clouds
    weights = torch.tensor([[1.0, 0.0, 2.0]] * 4, dtype=torch.float64)
    expected = averaged_velocity(x, X[:, [0, 2]], t, weights[:, [0, 2]])
    torch.testing.assert_close(averaged_velocity(x, X, t, weights), expected, rtol=0, atol=1e-13)


def test_one_conformer_given_twice_is_one(clouds):
    x, X, t = clouds
    twice = X[:, :1].expand(-1, 2, -1, -1)
    torch.testing.assert_close(
        averaged_velocity(x, twice, t), averaged_velocity(x, X[:, 0], t), rtol=0, atol=1e-12
    )


def test_offsets_are_taken_away(clouds):
    x, X, t = clouds
    found = averaged_velocity(x + 3, X - 2, t)
    torch.testing.assert_close(found, averaged_velocity(x, X, t), rtol=0, atol=1e-12)
    assert found.mean(dim=1).abs().max() < 1e-13


def test_gradients_reach_x(clouds):
    x, X, t = clouds
    x = x[:2].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: averaged_velocity(x, X[:2], t[:2]), (x,), atol=1e-6)


def test_random_rotations_and_the_integrated_field_have_one_law_at_every_time(clouds):
    _, X, _ = clouds
    count = 3000
    X = X[:1, 0].expand(count, -1, -1)
    t = torch.full((count,), 0.6, dtype=torch.float64)
    x0 = centre(gaussian(count, 9, 3, seed=4))
    followed = integration_interpolant(x0, X, t, steps=40)
    Q = random_rotations(count, torch.Generator().manual_seed(9), torch.float64)
    drawn = 0.4 * centre(gaussian(count, 9, 3, seed=8)) + 0.6 * X @ Q
    # Rotation-invariant statistics: sizes, and singular values of x^T X. Standard errors are near 2 %.
    for name, measure in {
        "size": lambda x: x.square().sum((1, 2)),
        "fit": lambda x: torch.linalg.svdvals(x.mT @ X)[:, 0],
        "least": lambda x: torch.linalg.svdvals(x.mT @ X)[:, 2],
    }.items():
        a, b = measure(followed), measure(drawn)
        assert (a.mean() - b.mean()).abs() < 0.08 * b.std() + 0.01 * b.mean(), name
        assert a.std() == pytest.approx(b.std().item(), rel=0.12), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"t": torch.tensor([0.1, 0.3, 0.5, 1.0])}, r"must lie in \[0, 1\)"),
        ({"t": torch.tensor([0.1, 0.3, 0.5, -0.1])}, r"must lie in \[0, 1\)"),
        ({"t": torch.tensor([0.1])}, "one time for each"),
        ({"X": torch.zeros(4, 3, 8, 3)}, r"shape \(4, 3, 8, 3\)"),
        ({"X": torch.full((4, 9, 3), torch.nan)}, "not finite"),
        ({"x": torch.zeros(4, 9, 2)}, r"must be \(batch, atoms, 3\)"),
        ({"mask": torch.ones(4, 8, dtype=torch.bool)}, "mask has shape"),
        ({"weights": torch.ones(4, 2)}, "weights have shape"),
        ({"weights": torch.tensor([[1.0, -1.0, 0.0]] * 4)}, "not negative"),
        ({"weights": torch.zeros(4, 3)}, "all zero"),
        ({"sigma1": 2.0}, "sigma1"),
        ({"sigma0": 0.0}, "sigma0"),
    ],
)
def test_bad_input_is_refused(clouds, change, message):
    x, X, t = clouds
    with pytest.raises(InputError, match=message):
        averaged_target(**({"x": x, "X": X, "t": t} | change))


def test_positions_off_centre_are_refused_where_centring_is_off(clouds):
    x, X, t = clouds
    averaged_target(x, X, t, centred=True)
    with pytest.raises(InputError, match=r"x is .* off its centre"):
        averaged_target(x + 1, X, t, centred=True)
    with pytest.raises(InputError, match=r"X is .* off its centre"):
        averaged_target(x, X + 1, t, centred=True)


def test_wrong_kinds_of_numbers_and_empty_sets_are_refused():
    x, X, t = torch.zeros(2, 4, 3), torch.zeros(2, 1, 4, 3), torch.zeros(2)
    for arguments, message in (
        ((x.long(), X, t), "x holds torch.int64"),
        ((x, X.numpy(), t), "X is a ndarray"),
        ((x, X, 0.5), "t is a float"),
        ((x, X[:, :0], t), "no conformer"),
        ((x, X, t, None, torch.tensor([[True] * 4, [False] * 4])), "without atoms"),
    ):
        with pytest.raises(InputError, match=message):
            averaged_velocity(*arguments)
