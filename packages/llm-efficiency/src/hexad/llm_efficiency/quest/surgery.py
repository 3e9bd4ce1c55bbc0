"""Which linear layers of a model are quantised, and putting others in their place."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from torch import nn

from hexad.core.errors import InputError

Module = TypeVar("Module", bound=nn.Module)

Filter = Callable[[nn.Module, str], bool]
"""`filter_fn(module, dotted name)`: whether to quantise this linear layer, as in torchao."""


def linears_of(
    model: nn.Module, skip: Sequence[str] = (), filter_fn: Filter | None = None
) -> dict[str, nn.Linear]:
    """The linear layers to quantise, by their dotted names.

    Only `nn.Linear` itself: what derives from it may not call its forward. Neither does torch's own
    transformer: `nn.MultiheadAttention` multiplies by its weights directly, and so does the fast path of
    `nn.TransformerEncoderLayer` in evaluation. Stacks of matrices (experts) are multiplied in other ways too.
    Rather than to leave them in full precision silently, all these are refused.

    Raises:
        InputError: no module, no such layer, something of the above that `skip` does not name, or a weight
            that a quantised layer shares with something else.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be an nn.Module, not {type(model).__name__}")

    def wanted(name: str) -> bool:
        return not any(part in name for part in skip)

    linears = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and wanted(name) and (filter_fn is None or filter_fn(module, name))
    }
    found = {name: module for name, module in linears.items() if type(module) is nn.Linear}
    for name, module in model.named_modules():
        inside = any(linear.startswith(f"{name}.") or not name for linear in found)
        if isinstance(module, nn.MultiheadAttention) and wanted(name):
            raise InputError(
                f"{name or 'the model'} is an nn.MultiheadAttention, whose weights would stay in full "
                "precision; name it in skip to leave it so, or write its linears out"
            )
        if isinstance(module, nn.TransformerEncoderLayer) and inside:
            raise InputError(
                f"{name or 'the model'} is an nn.TransformerEncoderLayer, which goes past its linear layers "
                "in evaluation; name it in skip, or write the layer out"
            )
    for name in found:
        if "lora_" in name:
            raise InputError(
                f"{name} belongs to an adapter of peft, whose matrices would be rounded too; prepare the "
                "model before the adapter is added, or name 'lora_' in skip"
            )
    for name, module in linears.items():
        if name not in found:
            raise InputError(
                f"{name or 'the model'} is a {type(module).__name__}, a kind of nn.Linear that may not "
                "compute as one, and would stay in full precision; name it in skip to leave it so"
            )
    if not found:
        others = {type(module).__name__ for module in model.modules()} & {"Conv1D"}
        hint = "; its Conv1D layers (GPT-2's) are none: write them as nn.Linear" if others else ""
        raise InputError(
            f"the model holds no nn.Linear to quantise, beside what skip and filter_fn leave out{hint}"
        )
    _check_stacks(model, wanted)
    check_sharing(model, found)
    return found


def _check_stacks(model: nn.Module, wanted: Callable[[str], bool]) -> None:
    """Several matrices in one parameter: transformers holds the experts of a layer so."""
    for name, module in model.named_modules():
        if type(module).__module__.startswith("torch.nn."):  # convolutions
            continue
        for own, parameter in module.named_parameters(recurse=False):
            full = f"{name}.{own}".removeprefix(".")
            if parameter.dim() == 3 and min(parameter.shape) > 1 and wanted(full):
                raise InputError(
                    f"{full} holds {len(parameter)} matrices in one parameter (experts?), which would stay "
                    f"in full precision; name {(name or own).rsplit('.', 1)[-1]!r} in skip to leave them so"
                )


def check_sharing(model: nn.Module, found: Mapping[str, nn.Linear]) -> None:
    """Raise `InputError` for a weight that lives on in full precision elsewhere: both would train it."""
    owners = {id(linear.weight): name for name, linear in found.items()}
    quantised = {f"{name}.weight".removeprefix(".") for name in everywhere(model, found)}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in owners and name not in quantised:
            owner = owners[id(parameter)]
            raise InputError(
                f"the weight of {owner} is shared with {name}, which stays in full precision; untie them, or "
                f"name {owner.rsplit('.', 1)[-1]!r} in skip"
            )


def everywhere(model: nn.Module, modules: Mapping[str, Module]) -> dict[str, Module]:
    """Modules by all the names of the places that they are meant for: a model may use a layer twice."""
    meant = {id(model.get_submodule(name)): module for name, module in modules.items()}
    places = model.named_modules(remove_duplicate=False)
    return {name: meant[id(module)] for name, module in places if id(module) in meant}


def swap(model: nn.Module, modules: Mapping[str, nn.Module]) -> nn.Module:
    """Put modules in the places of those names; the model itself goes by the empty name."""
    if "" in modules:
        _keep_hooks(model, modules[""])
        return modules[""]
    for name, module in everywhere(model, modules).items():
        _keep_hooks(model.get_submodule(name), module)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, module)
    return model


def _keep_hooks(old: nn.Module, new: nn.Module) -> None:
    """Who watches a layer goes on watching; in the same dictionaries, so that handles still work."""
    for kind in ("forward_hooks", "forward_pre_hooks"):
        for name in (f"_{kind}", f"_{kind}_with_kwargs"):
            setattr(new, name, getattr(old, name))
    backward = ("_backward_hooks", "_backward_pre_hooks", "_is_full_backward_hook")
    for name in ("_forward_hooks_always_called", *backward):
        setattr(new, name, getattr(old, name))
