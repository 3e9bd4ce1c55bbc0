"""Converted models as single safetensors files.

The file holds the model's whole state, packed layers as codes and scales; its metadata describes each
packed layer, so that the plain model that `prepare` once took is all that loading needs.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from hexad.core.errors import InputError
from hexad.core.files import atomic_path, writable_file
from hexad.core.validation import check_file
from hexad.llm_efficiency.quest.config import QuestConfig
from hexad.llm_efficiency.quest.layer import QuestLinear
from hexad.llm_efficiency.quest.model import tell_transformers
from hexad.llm_efficiency.quest.packed import PackedLinear
from hexad.llm_efficiency.quest.surgery import everywhere, swap

FORMAT = "hexad.quest.packed/1"

Model = TypeVar("Model", bound=nn.Module)


def save_packed(model: nn.Module, path: str | os.PathLike[str]) -> Path:
    """Write a converted model, atomically; the file's folder is made where it is missing.

    Raises:
        InputError: a model that is not converted, or a folder that cannot be written.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, PackedLinear)}
    if not layers:
        raise InputError("the model holds no packed layer; call convert(model) first")
    path = writable_file(path, "packed model")
    tensors: dict[str, Tensor] = {}
    owners: dict[tuple, str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in model.state_dict().items():
        # safetensors refuses tensors that share memory (tied weights); the second name becomes an alias.
        identity = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and identity in owners:
            aliases[name] = owners[identity]
        else:
            owners[identity] = name
            tensors[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    described = {
        name: {"in_features": layer.in_features, "out_features": layer.out_features}
        | {"bias": layer.bias is not None, "config": layer.config.to_dict()}
        for name, layer in layers.items()
    }
    metadata = {"format": FORMAT, "layers": json.dumps(described), "aliases": json.dumps(aliases)}
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata=metadata)
    return path


def load_packed(model: Model, path: str | os.PathLike[str]) -> Model:
    """Read a file of `save_packed` into a model of the same architecture.

    Args:
        model: plain, as it was before `prepare`, prepared, or converted with the same settings; its layers
            are replaced in place, and it is returned.
        path: the file.

    Raises:
        InputError: no such file, or none of `save_packed`; a model that lacks its layers, has them with
            other sizes, or holds layers quantised with another block or grid. Nothing is changed then.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be an nn.Module, not {type(model).__name__}")
    layers, tensors = _read(check_file(path, "packed model"))
    modules = dict(model.named_modules())
    packed: dict[str, PackedLinear] = {}
    for name, described in layers.items():
        there = modules.get(name)
        if not isinstance(there, (nn.Linear, PackedLinear)):
            raise InputError(f"{path} holds a packed layer {name!r}, which is no linear layer of this model")
        sizes = (described["in_features"], described["out_features"])
        if (there.in_features, there.out_features) != sizes:
            raise InputError(
                f"{name} of {path} is {sizes[0]} -> {sizes[1]}; the model has "
                f"{there.in_features} -> {there.out_features} there"
            )
        new = PackedLinear(*sizes, QuestConfig.from_dict(described["config"]), bias=described["bias"])
        if isinstance(there, (QuestLinear, PackedLinear)):
            _check_settings(name, there.config, new.config, path)
        packed[name] = new
    places = everywhere(model, packed)
    shapes = {key: tensor.shape for key, tensor in model.state_dict().items() if not _inside(key, places)}
    for name, layer in places.items():
        prefix = f"{name}.".removeprefix(".")
        shapes |= {prefix + key: tensor.shape for key, tensor in layer.state_dict().items()}
        layer.check_loaded(tensors.get(f"{prefix}layout"), tensors.get(f"{prefix}scale"), name)
    if differing := sorted(shapes.keys() ^ tensors.keys()):
        lacks = "file lacks" if differing[0] in shapes else "model lacks"
        raise InputError(f"{path} is of another model: the {lacks} {differing[0]!r}")
    for key, shape in shapes.items():
        if tensors[key].shape != shape:
            raise InputError(
                f"{path} is of another model: {key} has shape {tuple(tensors[key].shape)} there, "
                f"{tuple(shape)} in the model"
            )
    for name, layer in packed.items():
        if (bias := tensors.get(f"{name}.bias".removeprefix("."))) is not None:
            layer.to(dtype=bias.dtype)
    loaded = swap(model, packed)
    loaded.load_state_dict(tensors)
    tell_transformers(loaded)
    return loaded.requires_grad_(False)  # ty: ignore[invalid-explicit-return]


def _inside(key: str, names: Iterable[str]) -> bool:
    return any(not name or key.startswith(f"{name}.") for name in names)


def _check_settings(name: str, ours: QuestConfig, theirs: QuestConfig, path: str | os.PathLike[str]) -> None:
    for setting in ("w_bits", "a_bits", "block", "constants", "sparse"):
        mine, other = getattr(ours, setting), getattr(theirs, setting)
        if mine != other:
            raise InputError(
                f"{path} was packed with {setting}={other}; {name} of the model has {mine}. "
                "Load it into the plain model"
            )


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except SafetensorError as error:
        raise InputError(f"{path} is no safetensors file ({error})") from None
    if metadata.get("format") != FORMAT:
        found = metadata.get("format", "not named")
        raise InputError(f"{path} is no packed model (its format is {found!r}); save_packed writes them")
    try:
        layers = json.loads(metadata["layers"])
        tensors |= {name: tensors[owner] for name, owner in json.loads(metadata["aliases"]).items()}
        for described in layers.values():
            _ = [described[key] for key in ("in_features", "out_features", "bias", "config")]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged ({error!r}); save it again") from None
    return layers, tensors
