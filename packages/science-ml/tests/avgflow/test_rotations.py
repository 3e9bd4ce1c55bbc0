"""The mean of a matrix Fisher distribution beside quadrature on the group, scipy, and finite differences."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from hexad.core.errors import InputError
from hexad.science_ml.avgflow.rotations import (
    align,
    matrix_fisher_mean,
    mean_singular_values,
    proper_svd,
    random_rotations,
)

AWKWARD = [
    (0.0, 0.0, 0.0),
    (1.0, 1.0, 1.0),
    (2.0, 2.0, -2.0),
    (2.0, 1.0, -1.0),
    (3.0, 1.0, 1.0),
    (3.0, 3.0, 1.0),
    (3.0, 1.0, 1.0 + 1e-6),
    (5.0, 0.0, 0.0),
    (1e-9, 0.0, 0.0),
]
"""Singular values that coincide, vanish, or are opposite."""


def gaussian(*shape, scale=1.0, seed=0):
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def haar_quadrature(F, count=56):
    """E[R] and log c on a ZYZ grid: trapezoid in both azimuths, Gauss-Legendre in the cosine of the tilt."""
    azimuth = np.arange(count) * 2 * math.pi / count
    cosine, weight = np.polynomial.legendre.leggauss(count)
    angles = np.meshgrid(azimuth, np.arccos(cosine), azimuth, indexing="ij")
    R = torch.from_numpy(Rotation.from_euler("ZYZ", np.stack(angles, -1).reshape(-1, 3)).as_matrix())
    mass = torch.from_numpy(np.broadcast_to(weight[:, None] / 2 / count**2, (count,) * 3).reshape(-1).copy())
    density = mass * torch.exp((F * R).sum((-1, -2)))
    return torch.einsum("r,rij->ij", density, R) / density.sum(), density.sum().log()


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_mean_and_normaliser_equal_brute_haar_quadrature(scale, seed):
    F = gaussian(3, 3, scale=scale, seed=seed)
    expected_mean, expected_log_c = haar_quadrature(F)
    mean, log_c = matrix_fisher_mean(F)
    # The grid is exact to rounding for norms up to 10; a transposed F would be off by 0.1.
    torch.testing.assert_close(mean, expected_mean, rtol=0, atol=5e-14)
    torch.testing.assert_close(log_c, expected_log_c, rtol=0, atol=5e-14)


def test_awkward_singular_values_equal_brute_haar_quadrature():
    turned = random_rotations(2, torch.Generator().manual_seed(1), torch.float64)
    for s in AWKWARD:
        F = turned[0] @ torch.diag(torch.tensor(s, dtype=torch.float64)) @ turned[1]
        torch.testing.assert_close(matrix_fisher_mean(F)[0], haar_quadrature(F)[0], rtol=0, atol=5e-14)


def test_no_concentration_gives_zero():
    mean, log_c = matrix_fisher_mean(torch.zeros(2, 3, 3, dtype=torch.float64))
    assert mean.abs().max() < 1e-15
    assert log_c.abs().max() < 1e-14


def test_small_parameters_give_a_third_of_themselves():
    F = gaussian(3, 3, scale=1e-5)
    # The next term is of second order: 1e-5 of the first.
    torch.testing.assert_close(matrix_fisher_mean(F)[0], F / 3, rtol=1e-4, atol=1e-10)


def test_high_concentration_gives_the_identity():
    for s in (1e4, 1e6, 1e8):
        mean, _ = matrix_fisher_mean(s * torch.eye(3, dtype=torch.float64))
        # 1 - g = 1 / (2 s) to first order, by the Gaussian limit of two angles of variance 1 / (2 s).
        expected = torch.eye(3, dtype=torch.float64) * (1 - 1 / (2 * s))
        torch.testing.assert_close(mean, expected, rtol=0, atol=2 / s**2 + 1e-9)


def test_large_improper_parameter_gives_a_third():
    F = 1e6 * torch.diag(torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64))
    expected = torch.diag(torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64)) / 3
    # Half-turns about all axes are equally likely; the first correction is 1 / (6 s).
    torch.testing.assert_close(matrix_fisher_mean(F, 256)[0], expected, rtol=0, atol=5e-7)


@pytest.mark.parametrize(
    ("s", "nodes", "tolerance"),
    [
        ((5.0, 3.0, 1.0), 128, 1e-15),
        ((1e3, 999.0, -999.0), 128, 1e-13),
        ((1e4, 3e3, 1e3), 128, 2e-10),
        ((1e6, 1e6, -1e6), 128, 3e-8),
        ((1e3, 999.0, -999.0), 256, 2e-15),
        ((1e6, 1e6, -1e6), 256, 1e-13),
        ((1e8, 1e8, -1e8), 256, 1e-11),
    ],
)
def test_quadrature_error_is_what_the_docstring_says(s, nodes, tolerance):
    s = torch.tensor(s, dtype=torch.float64)
    expected, found = mean_singular_values(s, 2000)[0], mean_singular_values(s, nodes)[0]
    # 2000 nodes are converged; the single-precision rule of the released code errs by 2e-3 at (5, 3, 1).
    assert (found - expected).abs().max() < tolerance
    assert found.abs().max() <= 1


def test_the_three_forms_of_the_integral_agree():
    # Each singular value may be singled out: all three one-dimensional integrals are Z (card: equal Z_i).
    s = torch.tensor([20.0, 10.0, -5.0], dtype=torch.float64)
    tau = torch.linspace(-4.2, 4.2, 400, dtype=torch.float64)
    q = torch.exp(math.pi * torch.sinh(tau))
    x, y = q / (1 + q), 1 / (1 + q)
    weight = (tau[1] - tau[0]) * math.pi * torch.cosh(tau) * x * y
    total = mean_singular_values(s)[1] - s.sum()
    g = mean_singular_values(s)[0]
    for a, b, c in ((0, 1, 2), (1, 0, 2), (2, 0, 1)):
        density = weight * torch.special.i0e((s[b] - s[c]) * x) * torch.special.i0e((s[b] + s[c]) * y)
        density = density * torch.exp(-2 * (s[a] + s[c]) * x)
        assert density.sum().log().item() == pytest.approx(total.item(), abs=1e-13)
        assert 1 - 2 * (density * x).sum() / density.sum() == pytest.approx(g[a].item(), abs=1e-14)


def test_gradient_of_log_c_is_the_mean():
    F = gaussian(6, 3, 3, scale=2).requires_grad_()
    mean, log_c = matrix_fisher_mean(F)
    (gradient,) = torch.autograd.grad(log_c.sum(), F)
    torch.testing.assert_close(gradient, mean.detach(), rtol=0, atol=1e-15)


def test_finite_differences_of_log_c():
    F, step = gaussian(3, 3, scale=2), 1e-5
    mean, _ = matrix_fisher_mean(F)
    shifts = step * torch.eye(9, dtype=torch.float64).reshape(9, 3, 3)
    slopes = (matrix_fisher_mean(F + shifts)[1] - matrix_fisher_mean(F - shifts)[1]) / (2 * step)
    # Central differences: rounding 1e-15 / 1e-5 and a third order term of 1e-10.
    torch.testing.assert_close(slopes.reshape(3, 3), mean, rtol=0, atol=1e-9)


def test_gradients_of_the_mean_equal_finite_differences():
    F = gaussian(6, 3, 3, scale=2).requires_grad_()
    assert torch.autograd.gradcheck(lambda F: matrix_fisher_mean(F)[0], (F,), atol=1e-7)


@pytest.mark.parametrize("s", AWKWARD)
def test_gradients_are_right_where_singular_values_coincide(s):
    turned = random_rotations(2, torch.Generator().manual_seed(1), torch.float64)
    F = (turned[0] @ torch.diag(torch.tensor(s, dtype=torch.float64)) @ turned[1]).requires_grad_()
    # torch.linalg.svd's own gradient is NaN or infinite at most of these.
    assert torch.autograd.gradcheck(lambda F: matrix_fisher_mean(F)[0], (F,), atol=1e-6)


def test_rotating_the_parameter_rotates_the_mean():
    F, (A, B) = (
        gaussian(5, 3, 3, scale=4),
        random_rotations(2, torch.Generator().manual_seed(2), torch.float64),
    )
    mean, log_c = matrix_fisher_mean(F)
    turned, log_turned = matrix_fisher_mean(A @ F @ B)
    torch.testing.assert_close(turned, A @ mean @ B, rtol=0, atol=1e-13)
    torch.testing.assert_close(log_turned, log_c, rtol=1e-14, atol=1e-13)


def test_float32_comes_back_as_float32_and_is_computed_in_double():
    F = gaussian(4, 3, 3, scale=1e5)
    mean, log_c = matrix_fisher_mean(F.float())
    assert mean.dtype == log_c.dtype == torch.float32
    exact = matrix_fisher_mean(F.float().double())[0]
    # Only the rounding of the result is left; I0 of 1e5 alone would overflow in float32.
    torch.testing.assert_close(mean.double(), exact, rtol=0, atol=1e-7)


def test_proper_svd_of_a_reflection_gives_rotations():
    F = gaussian(50, 3, 3)
    U, s, V = proper_svd(F)
    torch.testing.assert_close(U @ torch.diag_embed(s) @ V.mT, F, rtol=0, atol=1e-13)
    for Q in (U, V):
        torch.testing.assert_close(
            torch.linalg.det(Q), torch.ones(50, dtype=torch.float64), rtol=0, atol=1e-12
        )
    assert (s[:, 0] >= s[:, 1]).all()
    assert (s[:, 1] >= s[:, 2].abs()).all()
    assert (torch.sign(s[:, 2]) == torch.sign(torch.linalg.det(F))).all()


def test_align_equals_scipy():
    x, X = gaussian(4, 7, 3), gaussian(4, 7, 3, seed=1)
    turned, R = align(x, X)
    for k in range(4):
        expected = Rotation.align_vectors(x[k].numpy(), X[k].numpy())[0].as_matrix()
        torch.testing.assert_close(R[k], torch.from_numpy(expected), rtol=0, atol=1e-8)
        torch.testing.assert_close(turned[k], X[k] @ R[k].T, rtol=0, atol=1e-14)


def test_random_rotations_are_haar():
    R = random_rotations(20_000, torch.Generator().manual_seed(0), torch.float64)
    eye = torch.eye(3, dtype=torch.float64).expand_as(R)
    torch.testing.assert_close(R @ R.mT, eye, rtol=0, atol=1e-14)
    assert (torch.linalg.det(R) > 0).all()
    trace = R.diagonal(dim1=1, dim2=2).sum(1)
    # The characters of SO(3): E tr R = 0, E tr^2 = 1, E tr^3 = 1. Standard errors: 0.007, 0.011, 0.03.
    assert abs(trace.mean()) < 0.03
    assert trace.square().mean() == pytest.approx(1, abs=0.05)
    assert trace.pow(3).mean() == pytest.approx(1, abs=0.15)


def test_wrong_shapes_and_numbers_are_refused():
    with pytest.raises(InputError, match=r"shape \(3, 4\)"):
        matrix_fisher_mean(torch.zeros(3, 4))
    with pytest.raises(InputError, match="not finite"):
        matrix_fisher_mean(torch.full((3, 3), torch.nan))


def test_second_derivatives_are_refused_and_not_wrong():
    F = gaussian(3, 3).requires_grad_()
    (gradient,) = torch.autograd.grad(matrix_fisher_mean(F)[0].sum(), F, create_graph=True)
    with pytest.raises(RuntimeError, match=r"does not require grad|once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    ("F", "message"),
    [
        (torch.eye(3).long(), "F holds torch.int64 numbers"),
        (torch.eye(3).cfloat(), "F holds torch.complex64 numbers"),
        (np.eye(3), "F is a ndarray"),
        (1e21 * torch.eye(3, dtype=torch.float64), "beyond 1e\\+20"),
    ],
)
def test_other_numbers_are_refused(F, message):
    with pytest.raises(InputError, match=message):
        matrix_fisher_mean(F)


def test_few_nodes_are_refused():
    with pytest.raises(InputError, match="nodes is 4; it must be a whole number of at least 32"):
        matrix_fisher_mean(torch.eye(3), nodes=4)


def test_the_largest_entries_give_the_rotation_of_kabsch():
    turn = random_rotations(1, torch.Generator().manual_seed(0), dtype=torch.float64)[0]
    F = turn @ torch.diag(torch.tensor([1.0, 0.5, 0.3], dtype=torch.float64)) * 9e19
    mean, log_c = matrix_fisher_mean(F)
    # F = U diag(s) with a positive definite second factor, whose nearest rotation is U itself.
    assert (mean - turn).abs().max() < 1e-6
    assert torch.isfinite(log_c)
