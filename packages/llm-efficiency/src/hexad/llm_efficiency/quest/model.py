"""Surgery on whole models, in two steps as torchao has them: `prepare` to train, `convert` to deploy."""

import sys
from typing import TypeVar

from torch import nn

from hexad.core.errors import InputError
from hexad.llm_efficiency.quest.config import QuestConfig
from hexad.llm_efficiency.quest.layer import QuestLinear, check_features, check_own_weight, check_weight
from hexad.llm_efficiency.quest.packed import PackedLinear
from hexad.llm_efficiency.quest.surgery import Filter, linears_of, swap

Model = TypeVar("Model", bound=nn.Module)


def quantised_layers(model: nn.Module) -> dict[str, QuestLinear | PackedLinear]:
    """The prepared and the converted layers, by their dotted names."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (QuestLinear, PackedLinear))
    }


def prepare(model: Model, config: QuestConfig | None = None, filter_fn: Filter | None = None) -> Model:
    """Make the linear layers of a model train with quantised weights and activations.

    Every `nn.Linear` whose dotted name holds no part of `config.skip` becomes a `QuestLinear` over the same
    parameters, so an optimiser may be made before or after. Embeddings, norms, the scores of attention and,
    by default, the head stay in full precision. A transformers model also remembers it in its configuration,
    so that `save_pretrained` and `from_pretrained` keep it, and trains with its Trainer.

    Args:
        model: changed in place, and returned (a lone `nn.Linear` gives a new module).
        config: see `QuestConfig`.
        filter_fn: `filter_fn(module, name)` says of each linear layer whether to quantise it.

    Raises:
        InputError: a model that is prepared or converted already, that holds no layer to quantise, torch's
            own transformer layers, a weight shared with something in full precision, inputs that leave too
            small a Hadamard block, weights that are not finite, real numbers. Nothing is changed then.
    """
    config = QuestConfig() if config is None else config
    if not isinstance(config, QuestConfig):
        raise InputError(f"config must be a QuestConfig, not {type(config).__name__}")
    if isinstance(model, nn.Module) and (before := quantised_layers(model)):
        kind = type(next(iter(before.values()))).__name__
        raise InputError(f"the model holds {len(before)} {kind} layers already; prepare it once, and plain")
    found = linears_of(model, config.skip, filter_fn)
    for name, linear in found.items():
        try:
            check_features(linear.in_features, config)
            check_own_weight(linear)
            check_weight(linear.weight)
        except InputError as error:
            raise InputError(f"{name or 'the layer'}: {error}") from None
    prepared = swap(model, {name: QuestLinear.from_linear(linear, config) for name, linear in found.items()})
    tell_transformers(prepared)
    return prepared  # ty: ignore[invalid-explicit-return]


def convert(model: Model) -> Model:
    """Make a prepared model ready to deploy: packed codes and a scale a row instead of weights.

    The converted model computes what the prepared one did, and cannot be trained.

    Args:
        model: changed in place, and returned.

    Raises:
        InputError: a model that is not prepared, or is converted already, or quantised to 16 bits. Nothing
            is changed then.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be an nn.Module, not {type(model).__name__}")
    layers = quantised_layers(model)
    if any(isinstance(layer, PackedLinear) for layer in layers.values()):
        raise InputError("the model is converted already")
    if not layers:
        raise InputError("the model is not prepared: it holds no QuestLinear; call prepare(model) first")
    packed: dict[str, nn.Module] = {}
    for name, layer in layers.items():
        assert isinstance(layer, QuestLinear)
        try:
            packed[name] = PackedLinear.from_quest(layer)
        except InputError as error:
            raise InputError(f"{name or 'the layer'}: {error}") from None
    # What is left could be trained, but no gradient passes through a packed layer to it.
    converted = swap(model, packed).requires_grad_(False)
    tell_transformers(converted)
    return converted  # ty: ignore[invalid-explicit-return]


def tell_transformers(model: nn.Module) -> None:
    """Note the quantisation in a transformers model, or those inside a model of another kind.

    Who has not imported transformers has none.
    """
    library = sys.modules.get("transformers.modeling_utils")
    if library is None:
        return
    if not isinstance(model, library.PreTrainedModel):
        for child in model.children():
            tell_transformers(child)
    elif quantised_layers(model):
        from hexad.llm_efficiency.quest.transformers import attach

        attach(model)
