"""How sharp a minimum is: the largest eigenvalue of the Hessian, and the rise of the loss around it."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hexad.core.errors import InputError
from hexad.core.validation import check_count, check_range


def top_hessian_eigenvalue(
    model: nn.Module,
    loss: Callable[[nn.Module], Float[Tensor, ""]],
    *,
    iterations: int = 100,
    tolerance: float = 1e-3,
    seed: int = 0,
) -> float:
    """The largest eigenvalue of the loss's Hessian over all trainable parameters, by power iteration.

    Where the eigenvalue of largest size is negative, the iteration is run again on the Hessian shifted by
    it, so that the result is the largest, not the largest in size.

    Args:
        model: at the weights in question; put into evaluation mode first if it has dropout.
        loss: `model -> scalar`, over all the data in question, twice differentiable.
        iterations: at most so many Hessian-vector products a run.
        tolerance: stop when the estimate changes by less than this share of itself.
        seed: of the first direction.

    Raises:
        InputError: the loss is not finite.
    """
    check_count("iterations", iterations)
    check_range("tolerance", tolerance, 0)
    parameters = [p for p in model.parameters() if p.requires_grad]
    value = loss(model)
    if not torch.isfinite(value):
        raise InputError(f"the loss is {float(value.detach())}; sharpness is of finite losses")
    gradients = torch.autograd.grad(value, parameters, create_graph=True, materialize_grads=True)
    gradient = torch.cat([g.reshape(-1) for g in gradients])

    def product(vector: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        parts = torch.autograd.grad(
            gradient, parameters, vector, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return torch.cat([part.reshape(-1) for part in parts])

    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(gradient.numel(), generator=generator).to(gradient)
    largest = _power(product, start, iterations, tolerance)
    if largest >= 0:
        return largest
    return largest + _power(lambda v: product(v) - largest * v, start, iterations, tolerance)


def _power(
    product: Callable[[Tensor], Tensor], vector: Float[Tensor, " n"], iterations: int, tolerance: float
) -> float:
    """The eigenvalue of largest size, with its sign, as the Rayleigh quotient."""
    estimate = 0.0
    vector = vector / vector.norm()
    for _ in range(iterations):
        image = product(vector)
        before, estimate = estimate, float(vector @ image)
        size = image.norm()
        if size == 0:
            return 0.0
        vector = image / size
        if abs(estimate - before) <= tolerance * abs(estimate):
            break
    return estimate


@torch.no_grad()
def flatness(
    model: nn.Module,
    loss: Callable[[nn.Module], Float[Tensor, ""]],
    *,
    radius: float = 0.1,
    draws: int = 20,
    seed: int = 0,
) -> float:
    """Mean rise of the loss under Gaussian directions scaled filter by filter (Li et al., arXiv 1712.09913).

    Each row of a weight (a filter, a neuron) is moved by `radius` times its own norm in a random direction;
    biases and other vectors stay. Rescaling a layer against the next therefore does not change the result.

    Args:
        model: at the weights in question; they are the same on return.
        loss: `model -> scalar`.
        radius: share of each row's norm.
        draws: random directions.
        seed: of the directions; the same for all models to be compared.
    """
    check_range("radius", radius, 0, low_open=True)
    check_count("draws", draws)
    weights = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
    kept = [p.clone() for p in weights]
    base = float(loss(model))
    generator = torch.Generator().manual_seed(seed)
    rises = []
    try:
        for _ in range(draws):
            for parameter, centre in zip(weights, kept, strict=True):
                noise = torch.randn(centre.shape, generator=generator).to(centre)
                rows = (-1, *[1] * (centre.ndim - 1))
                size = centre.flatten(1).norm(dim=1) / noise.flatten(1).norm(dim=1).clamp_min(1e-12)
                parameter.copy_(centre + radius * size.reshape(rows) * noise)
            rises.append(float(loss(model)) - base)
    finally:
        for parameter, centre in zip(weights, kept, strict=True):
            parameter.copy_(centre)
    return sum(rises) / draws
