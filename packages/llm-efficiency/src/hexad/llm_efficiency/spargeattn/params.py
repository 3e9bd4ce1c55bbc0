"""The filter's hyper-parameters, one value for all heads or one a head, and their files.

A file is safetensors: `layers.<i>.theta`, `layers.<i>.tau`, ... as vectors (numbers for all heads as float64
scalars), and the settings that are not per head (block sizes, the sink) as JSON in the metadata.
"""

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hexad.core.errors import InputError
from hexad.core.files import atomic_path, writable_file
from hexad.core.validation import check_count, check_file, check_flag

FORMAT = "hexad.spargeattn.params/1"
PER_HEAD = ("theta", "tau", "topk", "pv_threshold")
_RANGES = {"theta": (-1, 1), "tau": (0, 1), "topk": (0, 1), "pv_threshold": (0, math.inf)}

PerHead = float | Sequence[float] | Float[Tensor, " heads"]
"""A number for all heads, or one a head."""

# Both filters work with log2 weights: 2^-50 is nothing even in float32, so this is "stage 2 practically off".
UNTUNED_PV_THRESHOLD = 50.0


@dataclass(frozen=True, eq=False)
class HeadParams:
    """Hyper-parameters of the two-stage filter for the heads of one attention layer.

    The first four are a number for all heads, or one a head: a tensor of shape (heads,), or a sequence or an
    array, which is kept as such a tensor.

    Attributes:
        theta: a block whose tokens' mean cosine is at most this is never skipped; 1 makes a head dense.
        tau: share of the predicted attention mass to keep, in [0, 1]; None where `topk` is given.
        topk: share of the key blocks to keep, in [0, 1], instead of `tau`.
        pv_threshold: lambda of the second filter in log2 units; None switches that filter off.
        attention_sink: always keep the first block of keys.
        block_q: queries in a block.
        block_k: keys in a block.
        smooth_k: subtract the mean key before predicting.

    The defaults are those of the authors' released code (its cdf interface), without the second filter.

    Raises:
        InputError: a value out of its range, vectors of different lengths, both or neither of tau, topk.
    """

    theta: PerHead = 0.6
    tau: PerHead | None = 0.98
    topk: PerHead | None = None
    pv_threshold: PerHead | None = None
    attention_sink: bool = False
    block_q: int = 128
    block_k: int = 64
    smooth_k: bool = True

    def __post_init__(self) -> None:
        if (self.tau is None) == (self.topk is None):
            both = "are both set" if self.tau is not None else "are both None"
            raise InputError(f"tau and topk {both}; set one (for topk pass tau=None)")
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is None and name != "theta":
                continue
            # This runs in every call, so plain numbers, the usual case, become no tensors.
            if type(value) is not float and not isinstance(value, Tensor):
                value = _number_or_vector(name, value)
                object.__setattr__(self, name, value)
            if isinstance(value, Tensor):
                _check_vector(name, value, low, high)
            elif not low <= value <= high:  # true for NaN
                raise InputError(f"{name} is {value}; every value must lie in [{low}, {high}]")
        if len(lengths := self._vector_lengths()) > 1:
            raise InputError(f"vectors for different numbers of heads: {lengths}")
        check_count("block_q", self.block_q)
        check_count("block_k", self.block_k)
        check_flag("attention_sink", self.attention_sink)
        check_flag("smooth_k", self.smooth_k)

    def _vector_lengths(self) -> set[int]:
        values = (getattr(self, name) for name in PER_HEAD)
        return {len(value) for value in values if isinstance(value, Tensor) and value.dim() == 1}

    @property
    def heads(self) -> int | None:
        """Number of heads the vectors are for; None where all values are plain numbers."""
        return next(iter(self._vector_lengths()), None)

    def arguments(self) -> dict[str, Any]:
        """The fields as keyword arguments of `hexad.kernels.sparse_attention.sparse_attention`."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to a safetensors file, atomically, as layer 0; its folder is made where it is missing."""
        save_layers({0: self}, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "HeadParams":
        """Read a file that holds a single layer.

        Raises:
            InputError: no such file, not a file of parameters, or several layers (`load_layers` reads those).
        """
        layers = load_layers(path)
        if len(layers) != 1:
            raise InputError(f"{path} holds {len(layers)} layers; read it with load_layers")
        return next(iter(layers.values()))


def _number_or_vector(name: str, value: Any) -> float | Float[Tensor, "..."]:
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (str, bytes)):
        try:
            return torch.tensor(value, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            pass
    raise InputError(f"{name} is {value!r}; give a number, or one a head (a sequence or a tensor)")


def _check_vector(name: str, value: Tensor, low: float, high: float) -> None:
    if value.dim() > 1 or value.numel() == 0:
        raise InputError(f"{name} has shape {tuple(value.shape)}; give a number or one a head")
    if torch.compiler.is_compiling():
        return  # a compiled graph cannot branch on values; the kernel looks at them when it runs
    if value.is_meta or value.dtype == torch.bool or value.is_complex() or value.layout != torch.strided:
        raise InputError(
            f"{name} is a tensor of {value.dtype}, {value.layout}, on {value.device}; give real numbers"
        )
    if not bool(((value >= low) & (value <= high)).all()):
        raise InputError(f"{name} is {value}; every value must lie in [{low}, {high}]")


def check_params(params: Any) -> HeadParams:
    """Return `params` if they are `HeadParams`, else raise `InputError`."""
    if not isinstance(params, HeadParams):
        raise InputError(
            f"params must be HeadParams, not {type(params).__name__} (of several layers take one; a file is "
            "read with HeadParams.load)"
        )
    return params


def check_layers(layers: Any) -> Mapping[int, HeadParams]:
    """Return `layers` if they map indices of layers to `HeadParams`, else raise `InputError`."""
    if not isinstance(layers, Mapping):
        raise InputError(f"layers must map indices to HeadParams, not be {type(layers).__name__}")
    if not layers:
        raise InputError("params hold no layers")
    for index, params in layers.items():
        check_count("index of a layer", index, 0)
        check_params(params)
    return layers


def save_layers(layers: Mapping[int, HeadParams], path: str | os.PathLike[str]) -> None:
    """Write the parameters of several layers, by their index in the model, to one safetensors file.

    The file is written whole or not at all; its folder is made where it is missing.

    Raises:
        InputError: no layers, something else than `HeadParams` by index, or a folder that cannot be written.
    """
    check_layers(layers)
    path = writable_file(path, "parameter file")
    tensors: dict[str, Tensor] = {}
    settings: dict[str, dict[str, Any]] = {}
    for index, params in layers.items():
        settings[str(index)] = {}
        for name, value in params.arguments().items():
            if name not in PER_HEAD:
                settings[str(index)][name] = value
            elif value is not None:
                if isinstance(value, Tensor):
                    tensor = value.detach().cpu().clone(memory_format=torch.contiguous_format)
                else:
                    tensor = torch.tensor(value, dtype=torch.float64)
                tensors[f"layers.{index}.{name}"] = tensor
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata={"format": FORMAT, "settings": json.dumps(settings)})


def load_layers(path: str | os.PathLike[str]) -> dict[int, HeadParams]:
    """Read the parameters of all layers in a file, by layer index.

    Raises:
        InputError: no such file, or not one that `save_layers` wrote.
    """
    path = check_file(path, "parameter file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except SafetensorError as error:
        raise InputError(f"{path} is no safetensors file ({error})") from None
    if metadata.get("format") != FORMAT:
        raise InputError(
            f"{path} holds no filter parameters (its format is {metadata.get('format', 'not named')!r}, not "
            f"{FORMAT!r}); make one with `hexad llm-efficiency spargeattn tune`"
        )
    layers = {}
    try:
        for index, fixed in json.loads(metadata["settings"]).items():
            fields: dict[str, Any] = dict(fixed)
            for name in PER_HEAD:
                value = tensors.get(f"layers.{index}.{name}")
                fields[name] = value.item() if value is not None and value.dim() == 0 else value
            layers[int(index)] = HeadParams(**fields)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({error!r}); tune again") from None
    return layers
