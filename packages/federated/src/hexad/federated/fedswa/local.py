"""A client's round: K local steps from theta, and option I's gradient at theta (arXiv 2507.20016)."""

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from hexad.core.errors import InputError
from hexad.federated.fedswa.averaging import check_finite
from hexad.federated.fedswa.optimizer import CyclicSGD, LocalConfig

Loss = Callable[[nn.Module, Any], Float[Tensor, ""]]


@dataclass(frozen=True)
class LocalResult:
    """What a client's round came to.

    Attributes:
        delta: y_K - theta of each trainable parameter, by name.
        steps: steps taken.
        lr_sum: their rates, summed.
        loss: mean training loss over the steps.
        examples: batches' first dimensions, summed.
    """

    delta: dict[str, Float[Tensor, "..."]]
    steps: int
    lr_sum: float
    loss: float
    examples: int


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Float[Tensor, ""]:
    """The loss where no other is given: a batch is (inputs, classes)."""
    inputs, classes = batch
    return functional.cross_entropy(model(inputs), classes)


def local_train(
    model: nn.Module,
    loader: Iterable[Any],
    config: LocalConfig,
    correction: Mapping[str, Float[Tensor, "..."]] | None = None,
    *,
    loss: Loss = cross_entropy,
    optimizer: torch.optim.Optimizer | None = None,
    allow_inexact: bool = False,
) -> LocalResult:
    """Train a client's model, which holds theta on entry and y_K on return.

    Args:
        model: any module; buffers such as running statistics change as they do in training.
        loader: batches; gone through again and again until K steps are taken.
        config: see `LocalConfig`.
        correction: m - c_i for each trainable parameter.
        loss: `(model, batch) -> scalar`.
        optimizer: takes the steps in place of `CyclicSGD`, at the cycle's rates and with the corrected
            gradient. It adds the decay itself, after the clipping, so it must have the config's.
        allow_inexact: with a correction, accept an optimizer that is no plain SGD. The control variate is
            then no longer the mean of the client's gradients.

    Raises:
        InputError: an empty loader, a loss that is not finite, a correction that does not fit, or one
            together with an optimizer that is no plain SGD; an optimizer of other parameters or of
            another decay.
    """
    if correction is not None and optimizer is not None and not allow_inexact and not _is_plain(optimizer):
        raise InputError(
            f"{type(optimizer).__name__} is no plain SGD, so the control variate would not be the mean of "
            "the gradients; drop `optimizer`, or pass allow_inexact=True"
        )
    own = CyclicSGD(model.named_parameters(remove_duplicate=False), config)
    own.set_correction(correction)
    named = own._named
    if optimizer is not None:
        _check_foreign(optimizer, named, config.weight_decay)
    start = {name: parameter.detach().clone() for name, parameter in named.items()}
    total, examples = 0.0, 0
    model.train()
    for step, batch in enumerate(_batches(loader, config.local_steps)):
        value = _gradients(model, batch, loss, own, config.sam_radius)
        number = float(value.detach())
        if not math.isfinite(number):
            raise InputError(
                f"the loss is {number} at local step {step + 1}; lower the learning rate (lr {config.lr:g})"
            )
        if optimizer is None:
            own.step()
        else:
            _foreign_step(own, optimizer)
        total += number
        examples += _length(batch)
    delta = {name: parameter.detach() - start[name] for name, parameter in named.items()}
    return LocalResult(delta, own.steps_taken, own.lr_sum, total / own.steps_taken, examples)


@torch.no_grad()
def evaluate_model(model: nn.Module, loader: Iterable[Any], loss: Loss = cross_entropy) -> dict[str, Any]:
    """ "num-examples" and the mean "eval-loss" of a model in evaluation mode; "accuracy" with cross entropy.

    Raises:
        InputError: an empty loader.
    """
    model.eval()
    examples, total, right = 0, 0.0, 0
    for batch in loader:
        count = _length(batch)
        examples += count
        total += float(loss(model, batch)) * count
        if loss is cross_entropy:
            right += int((model(batch[0]).argmax(1) == batch[1]).sum())
    if not examples:
        raise InputError("the loader is empty; a client needs at least one batch to evaluate on")
    metrics: dict[str, Any] = {"num-examples": examples, "eval-loss": total / examples}
    return metrics | ({"accuracy": right / examples} if loss is cross_entropy else {})


def full_gradient(
    model: nn.Module, loader: Iterable[Any], weight_decay: float = 0.0, *, loss: Loss = cross_entropy
) -> dict[str, Float[Tensor, "..."]]:
    """The gradient over all of a client's data at the model's weights: option I of the control variate.

    Batches weigh by their first dimension, so the batch size does not matter for a loss that is a mean. It is
    taken in training mode, as the local steps are; buffers and the model's mode are put back.

    Returns:
        For each name of each parameter its gradient with decay: the same for all names of a tied one, 0 for
            a frozen one.

    Raises:
        InputError: an empty loader, no parameter that needs a gradient, or a gradient that is not finite.
    """
    names = list(model.named_parameters(remove_duplicate=False))
    trained = list(dict.fromkeys(p for _, p in names if p.requires_grad))
    if not trained:
        raise InputError("no parameter needs a gradient; there is nothing to train")
    sums, examples = [torch.zeros_like(p) for p in trained], 0
    with _as_it_was(model):
        model.train()
        for batch in loader:
            gradients = torch.autograd.grad(
                loss(model, batch), trained, allow_unused=True, materialize_grads=True
            )
            torch._foreach_add_(sums, gradients, alpha=float(_length(batch)))
            examples += _length(batch)
    if not examples:
        raise InputError("the loader is empty; a client needs at least one batch")
    whole = {p: total / examples + weight_decay * p.detach() for p, total in zip(trained, sums, strict=True)}
    gradient = {name: whole[p] if p in whole else torch.zeros_like(p) for name, p in names}
    check_finite("the gradient", gradient)
    return gradient


@contextmanager
def _as_it_was(model: nn.Module) -> Generator[None]:
    """Put buffers and the mode of every module back when the block ends."""
    modes = {module: module.training for module in model.modules()}
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def _check_foreign(
    optimizer: torch.optim.Optimizer, named: Mapping[str, Tensor], weight_decay: float
) -> None:
    """Refuse an optimizer that would train something else, or with another decay than the config's."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    wanted = {id(p) for p in named.values()}
    if held != wanted:
        raise InputError(
            f"the optimizer lacks {len(wanted - held)} of the model's {len(wanted)} trainable parameters and "
            f"has {len(held - wanted)} of others; make it from model.parameters()"
        )
    for group in optimizer.param_groups:
        decay = float(group.get("weight_decay", 0.0))
        if decay != weight_decay:
            raise InputError(
                f"the optimizer's weight_decay is {decay:g} and the config's {weight_decay:g}; "
                "give both the same"
            )


def _batches(loader: Iterable[Any], steps: int) -> Iterator[Any]:
    taken = 0
    while taken < steps:
        before = taken
        for batch in loader:
            yield batch
            taken += 1
            if taken == steps:
                return
        if taken == before:
            raise InputError(f"the loader is empty after {taken} of {steps} steps; give one that restarts")


def _length(batch: Any) -> int:
    """Examples in a batch: the first dimension of its first tensor."""
    if isinstance(batch, Tensor):
        return len(batch)
    items = batch.values() if isinstance(batch, Mapping) else batch
    return next((len(item) for item in items if isinstance(item, Tensor) and item.ndim), 1)


def _is_plain(optimizer: torch.optim.Optimizer) -> bool:
    return isinstance(optimizer, CyclicSGD) or (
        type(optimizer) is torch.optim.SGD
        and not any(group["momentum"] or group["maximize"] for group in optimizer.param_groups)
    )


def _gradients(
    model: nn.Module, batch: Any, loss: Loss, own: CyclicSGD, sam_radius: float
) -> Float[Tensor, ""]:
    """Fill the gradients; of SAM, those at the worst weights within the radius."""
    own.zero_grad()
    value = loss(model, batch)
    value.backward()
    if not sam_radius:
        return value
    moved: list[Tensor] = [p for p in own._named.values() if p.grad is not None]
    gradients = [p.grad for p in moved if p.grad is not None]
    kept = [p.detach().clone() for p in moved]
    scale = sam_radius / torch.nn.utils.get_total_norm(gradients).clamp_min(1e-12)
    with torch.no_grad():
        torch._foreach_add_(moved, [gradient * scale for gradient in gradients])
    own.zero_grad()
    loss(model, batch).backward()
    with torch.no_grad():
        torch._foreach_copy_(moved, kept)
    return value


@torch.no_grad()
def _foreign_step(own: CyclicSGD, optimizer: torch.optim.Optimizer) -> None:
    """A step of another optimizer at the cycle's rate, with clipping and correction, its own decay."""
    lr = own._next_rate()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in own._named.values()]
    if own.config.clip_norm is not None:
        norm = torch.nn.utils.get_total_norm(gradients)
        torch._foreach_mul_(gradients, (own.config.clip_norm / norm.clamp_min(1e-30)).clamp_max(1.0))
    if own._correction is not None:
        torch._foreach_add_(gradients, own._correction)
    for parameter, gradient in zip(own._named.values(), gradients, strict=True):
        parameter.grad = gradient
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    own.steps_taken += 1
    own.lr_sum += lr
