"""Load a classifier from a local file or a Python function, with the normalisation that it expects."""

import importlib
import inspect
import math
import re
import textwrap
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import nn

from hexad.core.devices import find_device
from hexad.core.errors import InputError
from hexad.core.validation import check_file, near_miss

Triple = tuple[float, float, float]


@dataclass(frozen=True)
class Classifier:
    """A network and what must be done to an image before it.

    Attributes:
        name: what it was loaded from.
        module: maps (batch, 3, size, size) to logits (batch, classes).
        mean, std: of the channels of an image in [0, 1].
        size: side of its input in pixels.
        device: where it runs.
        batch: how many images it takes at a time, where an exported program was fixed to that.
    """

    name: str
    module: nn.Module
    mean: Triple
    std: Triple
    size: int
    device: torch.device
    batch: int | None = None

    def logits(self, images: UInt8[np.ndarray, "batch size size 3"]) -> Float[np.ndarray, "batch classes"]:
        """Normalise and classify.

        Raises:
            InputError: the network fails on the batch, or gives no (batch, classes).
        """
        if self.batch is None:
            return self._run(images)
        parts = []
        for first in range(0, len(images), self.batch):
            part = images[first : first + self.batch]
            # A last batch that is too small is filled up with its last image.
            full = np.concatenate([part, np.repeat(part[-1:], self.batch - len(part), axis=0)])
            parts.append(self._run(full)[: len(part)])
        return np.concatenate(parts)

    def _run(self, images: UInt8[np.ndarray, "batch size size 3"]) -> Float[np.ndarray, "batch classes"]:
        batch = torch.from_numpy(images).to(self.device).permute(0, 3, 1, 2).float() / 255
        mean, std = (
            torch.tensor(values, device=self.device).view(3, 1, 1) for values in (self.mean, self.std)
        )
        try:
            with torch.inference_mode():
                logits = self.module((batch - mean) / std)
        except (RuntimeError, ValueError, AssertionError) as error:
            raise InputError(
                f"{self.name} fails on a batch of shape {tuple(batch.shape)} ({_first_line(error)}); "
                "it may want another size: see --input-size and --batch-size"
            ) from error
        if not isinstance(logits, torch.Tensor) or logits.ndim != 2:
            raise InputError(f"{self.name} must give logits (batch, classes), not {type(logits).__name__}")
        if len(logits) != len(batch):
            raise InputError(
                f"{self.name} gives {len(logits)} rows of logits for {len(batch)} images, not one each"
            )
        return logits.float().cpu().numpy()


def load_classifier(
    spec: str,
    *,
    mean: Triple | None = None,
    std: Triple | None = None,
    size: int | None = None,
    device: str = "auto",
) -> Classifier:
    """Load a classifier; nothing is downloaded and no pickled code is run.

    Args:
        spec: `timm:NAME,FILE` for an architecture of timm and a checkpoint (`.pth`, `.safetensors`);
            `FILE.pt2` for a program of `torch.export.save`; another file for a TorchScript program;
            `package.module:function` for a function without arguments that returns a `torch.nn.Module`.
        mean, std: of the channels, for an image in [0, 1]; default what the module's own `pretrained_cfg`
            (timm) says, and without one they must be given.
        size: side of the input; default the module's own, else 224.
        device: `auto`, `cpu`, `cuda` ...

    Raises:
        InputError: the spec, name, file or device is not to be had, the weights do not fit, or the
            normalisation is not known.
    """
    target = find_device(device)
    batch = None
    if spec.startswith("timm:"):
        module = _from_timm(spec.removeprefix("timm:"))
    elif re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", spec):
        module = _from_function(spec)
    else:
        module, batch = _from_file(_model_file(spec))
    config: dict[str, Any] = (
        getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None) or {}
    )
    mean = mean or _triple(config.get("mean"))
    std = std or _triple(config.get("std"))
    if mean is None or std is None:
        raise InputError(
            f"{spec} does not say how its input is normalised; give --mean and --std "
            "(0,0,0 and 1,1,1 if it normalises by itself)"
        )
    if not all(map(math.isfinite, (*mean, *std))):
        raise InputError(f"--mean is {mean} and --std {std}; all of them must be finite")
    if min(std) <= 0:
        raise InputError(f"--std is {std}; it must be positive")
    if size is None:
        size = int(config["input_size"][-1]) if "input_size" in config else 224
    if size < 1:
        raise InputError(f"--input-size is {size}; it must be positive")
    return Classifier(spec, module.to(target), mean, std, size, target, batch)


def _triple(values: Any) -> Triple | None:
    return None if values is None else (float(values[0]), float(values[1]), float(values[2]))


def _from_timm(spec: str) -> nn.Module:
    import timm
    from timm.models import load_state_dict

    name, _, checkpoint = spec.partition(",")
    known = timm.list_models()
    if name.partition(".")[0] not in known:
        raise InputError(f"timm has no model {name!r}; {near_miss(name, known)}")
    if not checkpoint:
        raise InputError(f"timm:{name} needs its weights, which are not downloaded: --model timm:{name},FILE")
    path = check_file(checkpoint, "checkpoint")
    try:
        weights = load_state_dict(str(path), device="cpu", weights_only=True)
    except Exception as error:
        # The words of torch advise to load the file unsafely.
        raise InputError(
            f"checkpoint {path} cannot be read as weights: it is damaged, or holds more than tensors; "
            "save module.state_dict() alone"
        ) from error
    # A checkpoint of another data set has as many classes as its last layer has rows.
    head = getattr(timm.models.get_pretrained_cfg(name), "classifier", None)
    last = weights.get(f"{head}.weight") if isinstance(head, str) else None
    module = timm.create_model(name, pretrained=False, num_classes=None if last is None else len(last))
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(f"checkpoint {path} does not fit timm's {name} ({_first_line(error, 2)})") from None
    return module.eval()


def _from_function(spec: str) -> nn.Module:
    module_name, _, function = spec.partition(":")
    try:
        make = getattr(importlib.import_module(module_name), function)
    except (ImportError, AttributeError) as error:
        here = Path(f"{module_name.partition('.')[0]}.py").exists()
        hint = "; set PYTHONPATH=. for a module of this folder" if here else ""
        raise InputError(f"--model {spec} cannot be imported ({error}){hint}") from None
    try:
        inspect.signature(make).bind()
    except (TypeError, ValueError) as error:
        raise InputError(f"--model {spec} must be a function without arguments ({error})") from None
    made = make()
    if not isinstance(made, nn.Module):
        raise InputError(f"--model {spec} must return a torch.nn.Module, not {type(made).__name__}")
    return made.eval()


def _model_file(spec: str) -> Path:
    if not Path(spec).exists() and re.fullmatch(r"[\w.]+", spec):
        import timm

        if timm.is_model(spec):
            raise InputError(
                f"model {spec} is no file; for timm's architecture write --model timm:{spec},CHECKPOINT"
            )
    return check_file(spec, "model")


def _from_file(path: Path) -> tuple[nn.Module, int | None]:
    """The module, and the batch size that it is fixed to."""
    try:
        if not zipfile.is_zipfile(path):
            # Where torch finds this out itself it prints a traceback.
            raise ValueError("it is damaged, or of another kind")
        if path.suffix == ".pt2":
            program = torch.export.load(path)
            return program.module(), _fixed_batch(program)
        with warnings.catch_warnings():
            # torch would rather see torch.export, but people have these files.
            warnings.simplefilter("ignore", FutureWarning)
            return torch.jit.load(path, map_location="cpu").eval(), None
    except Exception as error:
        raise InputError(
            f"model {path} is no program of torch.export or TorchScript ({_first_line(error)}); for weights "
            "alone name the architecture, timm:NAME,FILE, and export any other model by torch.export.save"
        ) from None


def _fixed_batch(program: torch.export.ExportedProgram) -> int | None:
    """The first dimension of the first input, unless it was exported as dynamic."""
    inputs = program.graph_signature.user_inputs
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    shape = getattr(nodes[str(inputs[0])].meta.get("val"), "shape", None) if inputs else None
    return shape[0] if shape and isinstance(shape[0], int) else None


def _first_line(error: Exception, lines: int = 1) -> str:
    text = " ".join(str(error).strip().split("\n")[:lines])
    return textwrap.shorten(text, 200, placeholder=" ...") or type(error).__name__
