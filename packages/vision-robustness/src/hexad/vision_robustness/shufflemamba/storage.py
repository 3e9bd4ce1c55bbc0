"""A trained network as one file: its weights, and in the header what is needed to build and to feed it."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import timm
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from hexad.core.errors import InputError
from hexad.core.files import atomic_path
from hexad.core.validation import check_file, check_path
from hexad.vision_robustness.shufflemamba import registry
from hexad.vision_robustness.shufflemamba.network import VisionMamba
from hexad.vision_robustness.shufflemamba.wrapping import apply_slws

FILE = "model.safetensors"
KEY = "hexad-shufflemamba"


@dataclass(frozen=True)
class Description:
    """What a network is, as JSON values.

    Attributes:
        model: timm's name, or empty for a `VisionMamba` of the `arguments`.
        arguments: of the constructor.
        classes: names in the order of the outputs.
        size: side of a picture in pixels.
        mean, std: of the channels of a picture in [0, 1].
        crop: share of a picture's shorter side that is kept for the network.
    """

    model: str
    arguments: dict[str, Any]
    classes: list[str]
    size: int
    mean: list[float]
    std: list[float]
    crop: float

    def build(self, slws_rate: float = 0.0, slws_schedule: Any = "linear") -> nn.Module:
        """The network with fresh weights, shuffled at `slws_rate` while it trains."""
        arguments: dict[str, Any] = self.arguments | {"num_classes": len(self.classes)}
        if not self.model:
            network: nn.Module = VisionMamba(**arguments)
        else:
            if self.model in registry.default_cfgs:
                arguments["slws_rate"] = 0.0  # not the registered rate, but the one asked for
            network = timm.create_model(self.model, **arguments)
        return apply_slws(network, slws_rate, slws_schedule) if slws_rate else network


def is_network(path: Path) -> bool:
    """Whether `path` is a run's folder, or a file that `save_network` wrote."""
    file = path / FILE if path.is_dir() else path
    try:
        with safe_open(file, framework="pt") as opened:
            return KEY in (opened.metadata() or {})
    except (SafetensorError, OSError):
        return path.is_dir()


def save_network(network: nn.Module, description: Description, path: Path) -> None:
    """Write weights and description to `path`, whole or not at all."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata={KEY: json.dumps(asdict(description))})


def load_network(path: str | Path) -> tuple[nn.Module, Description]:
    """The network of a run's folder, or of the file in it, in evaluation mode.

    Raises:
        InputError: no such file, or one that `train` did not write.
    """
    place = check_path(path, "run")
    file = check_file(place / FILE if place.is_dir() else place, "network")
    try:
        with safe_open(file, framework="pt") as opened:
            description = Description(**json.loads((opened.metadata() or {})[KEY]))
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, KeyError, TypeError, ValueError, OSError):
        raise InputError(f"{file} was not written by `shufflemamba train`, or is damaged") from None
    network = description.build()
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise InputError(f"{file} does not fit its own description ({str(error).splitlines()[0]})") from None
    return network.eval(), description
