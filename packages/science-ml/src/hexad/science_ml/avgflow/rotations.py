"""The mean rotation of a matrix Fisher distribution, exactly; alignment; random rotations.

The matrix Fisher distribution on SO(3) has the density exp tr(F^T R) / c(F) with respect to the Haar measure
of mass 1. With the proper SVD F = U diag(s1, s2, s3) V^T (det U = det V = 1, s1 >= s2 >= |s3|) its normaliser
is a one-dimensional integral (Mohlin, Sullivan and Bianchi, NeurIPS 2020, section 3; Lee, arXiv 1710.03746):

    log c = s1 + s2 + s3 + log Z,   Z = integral over [0, 1] of A B E,
    A = I0e((s2 - s3) x),   B = I0e((s2 + s3) (1 - x)),   E = exp(-2 (s1 + s3) x),   I0e(z) = exp(-|z|) I0(z),

and its mean is E[R] = d log c / dF = U diag(g) V^T with g_i = d log c / d s_i. Differentiating under the
integral gives all three g from the same four Bessel functions. U and V alone enter the mean, which is smooth
where singular values coincide, so nothing here differentiates through an SVD.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from hexad.core.errors import InputError
from hexad.core.validation import check_count
from hexad.science_ml.avgflow.quadrature import rule

NODES = 128
"""Nodes of the quadrature. Errors of g are below 1e-13 for s <= 1e3 and 3e-8 for any s, those of log c 1e-13
and 2e-4 at s = 1e8; with 256 nodes 1e-11 and 2e-7 for any s."""


LARGEST_ENTRY = 1e20
"""Of F: beyond it all of the integrand lies between 0 and the first node."""


def check_floating(what: str, value: Tensor) -> None:
    """Refuse what is no tensor of real floating point numbers: integers would be rounded to on return."""
    if not isinstance(value, Tensor):
        raise InputError(f"{what} is a {type(value).__name__}; give a tensor")
    if not value.is_floating_point():
        raise InputError(f"{what} holds {value.dtype} numbers; give floating point ones")


def proper_svd(
    F: Float[Tensor, "*batch 3 3"],
) -> tuple[Float[Tensor, "*batch 3 3"], Float[Tensor, "*batch 3"], Float[Tensor, "*batch 3 3"]]:
    """U, s, V with F = U diag(s) V^T, det U = det V = 1 and s1 >= s2 >= |s3| (s3 has the sign of det F)."""
    U, s, Vt = torch.linalg.svd(F)
    V = Vt.mT
    # A reflection's last column is turned round, and its singular value takes the sign.
    sign_u, sign_v = _handedness(U), _handedness(V)
    U = torch.cat([U[..., :2], U[..., 2:] * sign_u[..., None, None]], dim=-1)
    V = torch.cat([V[..., :2], V[..., 2:] * sign_v[..., None, None]], dim=-1)
    s = torch.cat([s[..., :2], s[..., 2:] * (sign_u * sign_v)[..., None]], dim=-1)
    return U, s, V


def _handedness(Q: Float[Tensor, "*batch 3 3"]) -> Float[Tensor, "*batch"]:
    """+1 for a rotation, -1 for a reflection (cheaper than a determinant by LU)."""
    cross = torch.linalg.cross(Q[..., 0], Q[..., 1], dim=-1)
    return torch.where((cross * Q[..., 2]).sum(-1) < 0, -1.0, 1.0).to(Q.dtype)


def mean_singular_values(
    s: Float[Tensor, "*batch 3"], nodes: int = NODES
) -> tuple[Float[Tensor, "*batch 3"], Float[Tensor, "*batch"]]:
    """g = d log c / d s and log c at proper singular values (float64).

    Args:
        s: s1 >= s2 >= |s3|.
        nodes: of the quadrature.
    """
    by = rule(nodes, s.device)
    x, y = by.x, by.y
    flat = s.reshape(-1, 3)
    s1, _, s3 = flat.unsqueeze(-1).unbind(1)
    # Rounding must not make an argument negative.
    arguments = torch.cat([flat[:, 1] - flat[:, 2], flat[:, 1] + flat[:, 2]]).clamp_min(0)
    (A, B), (slope_a, slope_b) = (both.view(2, -1, nodes) for both in by.bessel(arguments))
    B, slope_b = B.flip(-1), slope_b.flip(-1)  # of y
    decay = by.weights * torch.exp(-2 * (s1 + s3) * x)
    density = A * B * decay
    Z = density.sum(-1)
    first = (density * x).sum(-1) / Z
    second = (slope_a * B * decay * x).sum(-1) / Z
    third = (A * slope_b * decay * y).sum(-1) / Z
    g = torch.stack([1 - 2 * first, 1 + second + third, 1 - second + third - 2 * first], dim=-1)
    return g.reshape(s.shape), s.sum(-1) + Z.log().reshape(s.shape[:-1])


class _MatrixFisher(torch.autograd.Function):
    """(E[R], log c) of F; the derivative of log c is E[R], and that of E[R] the covariance of R."""

    @staticmethod
    def forward(ctx, F: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
        U, s, V = proper_svd(F)
        g, log_c = mean_singular_values(s, nodes)
        mean = (U * g[..., None, :]) @ V.mT
        ctx.save_for_backward(U, s, V, g, mean)
        return mean, log_c

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients: Tensor | None):
        grad_mean, grad_log_c = gradients
        U, s, V, g, mean = ctx.saved_tensors
        total = torch.zeros_like(mean)
        if grad_log_c is not None:
            total = total + grad_log_c[..., None, None] * mean
        if grad_mean is not None:
            total = total + _covariance_product(U, s, V, g, grad_mean)
        return total, None


def _covariance_product(U: Tensor, s: Tensor, V: Tensor, g: Tensor, direction: Tensor) -> Tensor:
    """Cov(R)[direction], the derivative of E[R] along `direction` (the covariance is symmetric).

    In the basis of U and V all second moments follow from g. For i != j, integration by parts on SO(3) gives
    p = E[R_ij^2] = E[R_ji^2] and q = E[R_ij R_ji] with p + q = D = (g_i - g_j) / (s_i - s_j) and
    p - q = E = (g_i + g_j) / (s_i + s_j). Rows have norm 1, so E[R_ii^2] = 1 - p_ij - p_ik; R is its own
    cofactor matrix, so E[R_ii R_jj] = g_k + q_ij.
    """
    p, q = _second_moments(s, g)
    M = U.mT @ direction @ V
    moved = torch.zeros_like(M)
    diagonal = M.diagonal(dim1=-2, dim2=-1)
    centred = diagonal - g * (g * diagonal).sum(-1, keepdim=True)
    for pair, (i, j) in enumerate(_PAIRS):
        k = 3 - i - j
        moved[..., i, j] = p[..., pair] * M[..., i, j] + q[..., pair] * M[..., j, i]
        moved[..., j, i] = p[..., pair] * M[..., j, i] + q[..., pair] * M[..., i, j]
        cross = g[..., k] + q[..., pair]
        centred[..., i] += cross * diagonal[..., j] - p[..., pair] * diagonal[..., i]
        centred[..., j] += cross * diagonal[..., i] - p[..., pair] * diagonal[..., j]
    return U @ (moved + torch.diag_embed(centred)) @ V.mT


_PAIRS = ((0, 1), (0, 2), (1, 2))


def _second_moments(s: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """p and q of `_covariance_product` for the pairs (0, 1), (0, 2), (1, 2)."""
    i, j, k = [0, 0, 1], [1, 2, 2], [2, 1, 0]
    difference, total = s[..., i] - s[..., j], s[..., i] + s[..., j]
    below, above = g[..., i] - g[..., j], g[..., i] + g[..., j]
    # A quotient of two small differences has lost its digits. Its limit is D = (H_ii + H_jj) / 2 - H_ij and
    # E = (H_ii + H_jj) / 2 + H_ij with the Hessian H of log c, which the identities above write in the p and
    # q of all three pairs: a linear system, whose rows for well separated pairs just state the quotient.
    tolerance = 1e-5 + 1e-8 * s[..., :1]
    near = torch.cat([difference.abs() < tolerance, total.abs() < tolerance], dim=-1)
    quotient = torch.cat([below / difference, above / total], dim=-1)
    limit = torch.cat([1 - g[..., k] - below**2 / 2, 1 + g[..., k] - above**2 / 2], dim=-1)
    same = torch.eye(3, dtype=s.dtype, device=s.device)
    coupled = 0.25 * (1 - same).repeat(2, 2) + 2 * torch.eye(6, dtype=s.dtype, device=s.device)
    system = torch.where(near[..., None], coupled, torch.eye(6, dtype=s.dtype, device=s.device))
    solved = torch.linalg.solve(system, torch.where(near, limit, quotient))
    D, E = solved[..., :3], solved[..., 3:]
    return (D + E) / 2, (D - E) / 2


def matrix_fisher_mean(
    F: Float[Tensor, "*batch 3 3"], nodes: int = NODES
) -> tuple[Float[Tensor, "*batch 3 3"], Float[Tensor, "*batch"]]:
    """Mean rotation E[R] and log normaliser log c of the matrix Fisher distribution with parameter F.

    Computed in float64 whatever the dtype of F, and returned in it. Differentiable once.

    Args:
        F: real matrices, entries up to 1e20; large ones give the rotation of Kabsch, F = 0 gives 0.
        nodes: of the quadrature, at least 32; see `NODES`.

    Raises:
        InputError: F is not of shape (..., 3, 3), not of floating point numbers, not finite or too large.
    """
    check_count("nodes", nodes, 32)
    check_floating("F", F)
    if F.ndim < 2 or F.shape[-2:] != (3, 3):
        raise InputError(f"F has shape {tuple(F.shape)}; it must be (..., 3, 3)")
    if not bool(torch.isfinite(F).all()):
        raise InputError("F holds numbers that are not finite; check the coordinates and that t < 1")
    if F.numel() and float(F.detach().abs().max()) > LARGEST_ENTRY:
        raise InputError(
            f"F holds entries beyond {LARGEST_ENTRY:g}; is t next to 1, or the unit not Angstrom?"
        )
    mean, log_c = _MatrixFisher.apply(F.double(), nodes)
    return mean.to(F.dtype), log_c.to(F.dtype)


def align(
    x: Float[Tensor, "*batch n 3"], X: Float[Tensor, "*batch n 3"]
) -> tuple[Float[Tensor, "*batch n 3"], Float[Tensor, "*batch 3 3"]]:
    """X rotated onto x with the least squared distance (Kabsch 1976), and the rotation R of `X @ R.mT`.

    Both must be centred where a shift is not to count. Rows of zeros (padding) change nothing.
    """
    U, _, V = proper_svd(x.mT @ X)
    R = U @ V.mT
    return X @ R.mT, R


def random_rotations(
    count: int,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Float[Tensor, "count 3 3"]:
    """Rotations drawn from the Haar measure, by normalised Gaussian quaternions."""
    quaternions = torch.randn(count, 4, generator=generator, dtype=torch.float64, device=device)
    w, x, y, z = (quaternions / quaternions.norm(dim=1, keepdim=True)).unbind(1)
    entries = [
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    ]  # fmt: skip
    return torch.stack(entries, dim=1).reshape(count, 3, 3).to(dtype)
