"""The regression target averaged over all rotations, its competitors, and the exact velocity field.

Conformers are X of shape (n, 3), rotated as X R^T, all centred; x0 ~ N(0, sigma0^2 I) and
sigma_t = (1 - t) sigma0 + t sigma1. Given x at time t, every rotation R of every conformer X_k has the
posterior weight w_k N(x; t X_k R^T, sigma_t^2 I). With F_k = (t / sigma_t^2) x^T X_k the posterior of R is a
matrix Fisher distribution, so that (Cao et al., ICML 2025, arXiv 2507.09785, section 3)

    xbar = sum_k pi_k X_k E_k[R]^T,   pi_k ~ w_k exp(log c(F_k) - t^2 |X_k|^2 / (2 sigma_t^2)),
    u = xbar + (sigma1 - sigma0) / sigma_t * (x - t xbar),   which is (xbar - x) / (1 - t) where sigma1 = 0.

Atom-wise padding is given by a mask; masked rows come back as zeros.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hexad.core.errors import InputError
from hexad.core.validation import check_range
from hexad.science_ml.avgflow.rotations import NODES, align, check_floating, matrix_fisher_mean

Points = Float[Tensor, "batch n 3"]
Mask = Bool[Tensor, "batch n"]


def centre(x: Float[Tensor, "*batch n 3"], mask: Bool[Tensor, "*batch n"] | None = None) -> Tensor:
    """Positions about the mean of the atoms that are there; zeros elsewhere."""
    if mask is None:
        return x - x.mean(dim=-2, keepdim=True)
    there = mask.unsqueeze(-1).to(x.dtype)
    x = x * there
    return (x - x.sum(dim=-2, keepdim=True) / there.sum(dim=-2, keepdim=True)) * there


def averaged_target(
    x: Points,
    X: Float[Tensor, "batch n 3"] | Float[Tensor, "batch k n 3"],
    t: Float[Tensor, " batch"],
    weights: Float[Tensor, "batch k"] | None = None,
    mask: Mask | None = None,
    *,
    sigma0: float = 1.0,
    sigma1: float = 0.0,
    centred: bool = False,
    nodes: int = NODES,
) -> Points:
    """xbar, the mean of all rotated conformers given the noisy positions x at time t.

    Args:
        x: noisy positions, in Angstrom.
        X: one conformer a molecule, or k of them.
        t: in [0, 1).
        weights: of the k conformers, not negative, not all zero; equal where None. They need not sum to 1.
        mask: true where there is an atom.
        sigma0: deviation of the noise at t = 0.
        sigma1: deviation at t = 1.
        centred: x and X are centred already; the default centres them.
        nodes: of the quadrature, see `matrix_fisher_mean`.

    Raises:
        InputError: shapes that do not fit, numbers that are not finite, t outside [0, 1), bad weights, or
            positions that are not centred though `centred=True` says so.
    """
    check_sigmas(sigma0, sigma1)
    X, t = _check(x, X, t, weights, mask)
    dtype = x.dtype
    x, X, t = x.double(), X.double(), t.double()
    there = None if mask is None else mask.unsqueeze(1)
    if centred:
        _check_centred("x", x, mask)
        _check_centred("X", X, there)
    else:
        x, X = centre(x, mask), centre(X, there)
    variance = ((1 - t) * sigma0 + t * sigma1).square()
    F = (t / variance)[:, None, None, None] * (x.unsqueeze(1).mT @ X)
    rotation, log_c = matrix_fisher_mean(F, nodes)
    rotated = X @ rotation.mT
    if X.shape[1] == 1:
        return rotated.squeeze(1).to(dtype)
    logits = log_c - (t.square() / (2 * variance))[:, None] * X.square().sum(dim=(-2, -1))
    if weights is not None:
        logits = logits + weights.double().log()
    posterior = logits.softmax(dim=1)
    return (posterior[:, :, None, None] * rotated).sum(dim=1).to(dtype)


def averaged_velocity(
    x: Points,
    X: Float[Tensor, "batch n 3"] | Float[Tensor, "batch k n 3"],
    t: Float[Tensor, " batch"],
    weights: Float[Tensor, "batch k"] | None = None,
    mask: Mask | None = None,
    *,
    sigma0: float = 1.0,
    sigma1: float = 0.0,
    centred: bool = False,
    nodes: int = NODES,
) -> Points:
    """u(t, x): the marginal velocity over all rotations of all conformers. Arguments as `averaged_target`."""
    check_floating("x", x)
    dtype, x = x.dtype, x.double()
    xbar = averaged_target(x, X, t, weights, mask, sigma0=sigma0, sigma1=sigma1, centred=centred, nodes=nodes)
    x = x if centred else centre(x, mask)
    time = t.double()[:, None, None]
    sigma = (1 - time) * sigma0 + time * sigma1
    return (xbar + (sigma1 - sigma0) / sigma * (x - time * xbar)).to(dtype)


def kabsch_target(x0: Points, X: Points, mask: Mask | None = None) -> Points:
    """The conformer rotated onto the noise x0, centred (the optimal transport baseline)."""
    return align(centre(x0, mask), centre(X, mask))[0]


def integration_interpolant(
    x0: Points,
    X: Float[Tensor, "batch n 3"] | Float[Tensor, "batch k n 3"],
    t: Float[Tensor, " batch"],
    weights: Float[Tensor, "batch k"] | None = None,
    mask: Mask | None = None,
    *,
    steps: int = 19,
    sigma0: float = 1.0,
    sigma1: float = 0.0,
) -> Points:
    """x_t on the path of the exact field from x0, by Euler steps on a grid of its own for each molecule.

    The authors' interpolant for networks that are not equivariant (19 steps).
    """
    check_range("steps", steps, 1)
    x, step = x0, t / steps
    for number in range(steps):
        velocity = averaged_velocity(x, X, number * step, weights, mask, sigma0=sigma0, sigma1=sigma1)
        x = x + step[:, None, None] * velocity
    return x


def check_sigmas(sigma0: float, sigma1: float) -> None:
    """Refuse deviations that are no numbers, or no path from noise to data."""
    check_range("sigma0", sigma0, 0, low_open=True)
    check_range("sigma1", sigma1, 0, sigma0)


def _check(
    x: Tensor, X: Tensor, t: Tensor, weights: Tensor | None, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Refuse what does not fit; return X with an axis of conformers, and t."""
    for what, value in (("x", x), ("X", X), ("t", t), ("weights", weights)):
        if value is not None:
            check_floating(what, value)
    if x.ndim != 3 or x.shape[-1] != 3:
        raise InputError(f"x has shape {tuple(x.shape)}; it must be (batch, atoms, 3)")
    X = X.unsqueeze(1) if X.ndim == 3 else X
    if X.ndim != 4 or (X.shape[0], *X.shape[2:]) != tuple(x.shape):
        raise InputError(
            f"X has shape {tuple(X.shape)}; with x of {tuple(x.shape)} it must be (batch, k, atoms, 3)"
        )
    if X.shape[1] == 0:
        raise InputError(f"X has shape {tuple(X.shape)}: no conformer; give at least one")
    if t.shape != x.shape[:1]:
        raise InputError(
            f"t has shape {tuple(t.shape)}; it must hold one time for each of {len(x)} molecules"
        )
    if not bool(((t >= 0) & (t < 1)).all()):
        raise InputError(f"t reaches from {float(t.min()):g} to {float(t.max()):g}; it must lie in [0, 1)")
    if not bool(torch.isfinite(x).all()) or not bool(torch.isfinite(X).all()):
        raise InputError("x or X holds numbers that are not finite")
    if mask is not None and mask.shape != x.shape[:2]:
        raise InputError(f"mask has shape {tuple(mask.shape)}; it must be {tuple(x.shape[:2])}")
    if mask is not None and not bool(mask.any(dim=1).all()):
        raise InputError("mask leaves a molecule without atoms; leave the molecule out")
    if weights is not None:
        if weights.shape != X.shape[:2]:
            raise InputError(f"weights have shape {tuple(weights.shape)}; they must be {tuple(X.shape[:2])}")
        if not bool((torch.isfinite(weights) & (weights >= 0)).all()):
            raise InputError("weights must be finite and not negative")
        if not bool((weights > 0).any(dim=1).all()):
            raise InputError(
                "the weights of a molecule are all zero; give at least one conformer some weight"
            )
    return X, t


def _check_centred(name: str, x: Tensor, mask: Tensor | None) -> None:
    """Refuse positions whose mean is more than rounding away from 0."""
    offset = float((x - centre(x, mask)).abs().max()) if x.numel() else 0.0
    if offset > 1e-4 * (1 + float(x.abs().max())):
        raise InputError(
            f"{name} is {offset:.3g} Angstrom off its centre though centred=True; centre it or leave that out"
        )
