"""The table of Bessel functions beside their evaluation, and the rule beside closed forms."""

import pytest
import torch

from hexad.science_ml.avgflow.quadrature import LARGEST, evaluate, rule

CPU = torch.device("cpu")


@pytest.mark.parametrize("nodes", [128, 256])
def test_interpolated_bessel_functions_equal_evaluated_ones(nodes):
    by = rule(nodes, CPU)
    generator = torch.Generator().manual_seed(0)
    a = torch.cat(
        [
            torch.tensor([0.0, 1e-300, 1e-20, 1e-9, 0.5, LARGEST], dtype=torch.float64),
            torch.rand(500, generator=generator, dtype=torch.float64),
            10 ** (14 * torch.rand(2000, generator=generator, dtype=torch.float64) - 2),
        ]
    )
    expected, expected_slope = evaluate(a[:, None] * by.x)
    value, slope = by.bessel(a)
    # |f| and |f'| are at most 1; the rounding of ten taps adds up to 1.8e-15. Eight taps would err by 1e-13.
    torch.testing.assert_close(value, expected, rtol=0, atol=4e-15)
    torch.testing.assert_close(slope, expected_slope, rtol=0, atol=4e-15)


def test_arguments_beyond_the_table_are_evaluated():
    by = rule(128, CPU)
    a = torch.tensor([1.0, 2 * LARGEST], dtype=torch.float64)
    value, slope = by.bessel(a)
    expected, expected_slope = evaluate(a[:, None] * by.x)
    assert (value == expected).all()
    assert (slope == expected_slope).all()


def test_slope_is_the_derivative():
    z = torch.linspace(-0.5, 30, 50, dtype=torch.float64).requires_grad_()
    value, slope = evaluate(z)
    # i0e(z) exp(-2 min(z, 0)) is smooth through 0; autograd differentiates i0e by torch's own formula.
    (expected,) = torch.autograd.grad(value.sum(), z)
    torch.testing.assert_close(slope.detach(), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("nodes", [128, 256])
def test_rule_integrates_ends_of_any_steepness(nodes):
    by = rule(nodes, CPU)
    assert (by.x + by.y - 1).abs().max() < 1e-15
    assert (by.y - by.x.flip(0)).abs().max() < 3e-16
    assert by.weights.sum().item() == pytest.approx(1, abs=1e-14)
    limits = {1.0: 1e-13, 1e3: 1e-12, 1e8: 5e-4} if nodes == 128 else {1.0: 1e-13, 1e3: 1e-12, 1e8: 1e-6}
    for steepness in limits:
        found = (by.weights * torch.exp(-steepness * by.x)).sum().item()
        expected = -torch.expm1(torch.tensor(-steepness, dtype=torch.float64)).item() / steepness
        # Nodes get sparser towards the ends, in their logarithm: the error grows slowly with the steepness.
        assert found == pytest.approx(expected, rel=limits[steepness])
