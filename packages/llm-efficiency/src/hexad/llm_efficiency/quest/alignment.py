"""How much of the true gradient a quantised model's gradient keeps: the cosine of the paper's section 4."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hexad.core.errors import InputError
from hexad.core.validation import check_flag
from hexad.llm_efficiency.quest.layer import QuestLinear, without_rounding

Loss = Callable[[nn.Module, Any], Float[Tensor, ""]]


def model_loss(model: nn.Module, batch: Any) -> Float[Tensor, ""]:
    """The loss that a transformers model computes from a batch with labels.

    Raises:
        InputError: the batch is no mapping, or the model gives no loss.
    """
    if not isinstance(batch, Mapping):
        raise InputError(f"the batch is {type(batch).__name__}; give a mapping with labels, or a loss")
    loss = getattr(model(**batch), "loss", None)
    if loss is None:
        raise InputError("the model gives no loss; put labels into the batch, or give a loss function")
    return loss


def gradient_alignment(
    model: nn.Module, batch: Any, loss: Loss = model_loss, *, weights: bool = False
) -> dict[str, float]:
    """Cosine of the weights' gradients to those with full-precision activations, of each quantised layer.

    The model is left as it is: its mode, its gradients and the random generator's state.

    Args:
        model: prepared.
        batch: what `loss` takes.
        loss: `(model, batch) -> scalar`.
        weights: leave the weights unrounded too in the gradient compared with.

    Raises:
        InputError: a model that is not prepared, or whose quantised weights are all frozen; a loss that is no
            finite number with a gradient.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be an nn.Module, not {type(model).__name__}")
    check_flag("weights", weights)
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, QuestLinear) and module.weight.requires_grad
    }
    if not layers:
        raise InputError("the model holds no QuestLinear that trains; call prepare(model) first")

    def gradients() -> tuple[Tensor, ...]:
        # The same dropout in both.
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(0)
            value = loss(model, batch)
            if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
                got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
                raise InputError(f"the loss must be one number with a gradient, got {got}")
            if not bool(value.isfinite()):
                raise InputError(f"the loss is {float(value)}; its gradient has no direction")
            return torch.autograd.grad(
                value, [layer.weight for layer in layers.values()], materialize_grads=True
            )

    quantised = gradients()
    with without_rounding(model, weights=weights):
        exact = gradients()
    return {
        name: float(nn.functional.cosine_similarity(ours.flatten().double(), true.flatten().double(), dim=0))
        for name, ours, true in zip(layers, quantised, exact, strict=True)
    }
