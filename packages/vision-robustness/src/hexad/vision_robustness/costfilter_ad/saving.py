"""A trained filter as one safetensors file: detector, network and mixture."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hexad.core.errors import InputError
from hexad.core.files import atomic_path
from hexad.core.validation import check_choice, check_file
from hexad.vision_robustness.costfilter_ad.detectors import DETECTORS
from hexad.vision_robustness.costfilter_ad.features import Lite0Features
from hexad.vision_robustness.costfilter_ad.filter import CostFilter, FilterConfig, Mixture

FORMAT = 1


def save_filter(model: CostFilter, path: str | Path) -> None:
    """Write a filter of a built-in detector.

    Raises:
        InputError: the detector is one's own; only `model.network.state_dict()` can be saved.
    """
    detector: Any = model.detector
    if DETECTORS.get(detector.name) is not type(detector):
        raise InputError(
            f"a detector of class {type(detector).__name__} cannot be saved; save its network's state_dict"
        )
    tensors = {f"network.{name}": tensor for name, tensor in model.network.state_dict().items()}
    tensors |= {f"detector.{name}": tensor for name, tensor in detector.state().items()}
    described = {
        "format": FORMAT,
        "detector": detector.name,
        "image_size": detector.image_size,
        "layers": list(detector.extractor.layers),
        "config": asdict(model.config),
        "classes": list(model.classes),
        "mixture": asdict(model.mixture),
    }
    with atomic_path(path) as temporary:
        save_file(
            {name: tensor.contiguous() for name, tensor in tensors.items()},
            temporary,
            metadata={"hexad": json.dumps(described)},
        )


def load_filter(path: str | Path) -> CostFilter:
    """Read what `save_filter` wrote.

    Raises:
        InputError: it is no such file.
        MissingExtraError: the weights of the features are not installed.
    """
    file = check_file(path, "model")
    try:
        with safe_open(file, framework="pt") as opened:
            described = json.loads((opened.metadata() or {})["hexad"])
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
        if described["format"] != FORMAT:
            raise KeyError("format")
        kind, side, layers = described["detector"], described["image_size"], described["layers"]
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        raise InputError(
            f"model {file} is no filter that costfilter-ad train wrote, or a damaged one; train it again"
        ) from None

    def below(prefix: str) -> dict[str, Tensor]:
        return {n.removeprefix(prefix): tensor for n, tensor in tensors.items() if n.startswith(prefix)}

    check_choice("detector", kind, DETECTORS, f"in {file}")
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise InputError(f"model {file} holds numbers that are not finite; train it again")
    extractor = Lite0Features(layers)
    try:
        detector = DETECTORS[kind].from_state(extractor, side, below("detector."))
        model = CostFilter(
            detector,
            FilterConfig(**described["config"]),
            described["classes"],
            Mixture(**described["mixture"]),
        )
        model.network.load_state_dict(below("network."))
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"model {file} does not fit its own description; train it again") from None
    return model
