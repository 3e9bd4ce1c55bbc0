"""Which linear layers of a model are quantised, and putting others in their place."""

from collections.abc import Callable, Mapping, Sequence

from torch import nn

from hexad.core.errors import InputError

Filter = Callable[[nn.Module, str], bool]
"""`filter_fn(module, dotted name)`: whether to quantise this linear layer, as in torchao."""


def linears_of(
    model: nn.Module, skip: Sequence[str] = (), filter_fn: Filter | None = None
) -> dict[str, nn.Linear]:
    """The linear layers to quantise, by their dotted names.

    Only `nn.Linear` itself: what derives from it may not call its forward. Neither does torch's own
    transformer: `nn.MultiheadAttention` multiplies by its weights directly, and so does the fast path of
    `nn.TransformerEncoderLayer` in evaluation; rather than to leave them out silently they are refused.

    Raises:
        InputError: no module, no such layer, one of torch's own transformer layers that `skip` does not
            name, or a weight that a quantised layer shares with something else.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be an nn.Module, not {type(model).__name__}")

    def wanted(name: str) -> bool:
        return not any(part in name for part in skip)

    found = {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.Linear and wanted(name) and (filter_fn is None or filter_fn(module, name))
    }
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
    if not found:
        raise InputError("the model holds no nn.Linear to quantise, beside what skip and filter_fn leave out")
    _check_sharing(model, found)
    return found


def _check_sharing(model: nn.Module, found: Mapping[str, nn.Linear]) -> None:
    """A weight that lives on in full precision elsewhere would be trained by both."""
    owners = {id(linear.weight): name for name, linear in found.items()}
    quantised = {f"{name}.weight".removeprefix(".") for name in found}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in owners and name not in quantised:
            owner = owners[id(parameter)]
            raise InputError(
                f"the weight of {owner} is shared with {name}, which stays in full precision; untie them, or "
                f"name {owner.rsplit('.', 1)[-1]!r} in skip"
            )


def swap(model: nn.Module, modules: Mapping[str, nn.Module]) -> nn.Module:
    """Put modules in the places of those names; the model itself goes by the empty name."""
    if "" in modules:
        return modules[""]
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, module)
    return model
