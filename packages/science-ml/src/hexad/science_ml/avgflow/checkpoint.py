"""A trained network in one safetensors file: weights, and in its header architecture, limits, provenance.

No pickle is read or written.
"""

import json
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from hexad.core.errors import InputError
from hexad.core.files import atomic_path
from hexad.core.validation import check_choice, check_file, check_path, check_range
from hexad.science_ml.avgflow.equivariant import EquivariantFlow, EquivariantFlowConfig
from hexad.science_ml.avgflow.network import ConformerFlow, ConformerFlowConfig

Kind = Literal["base", "reflow", "distilled"]
KINDS = ("base", "reflow", "distilled")
_ARCHITECTURES: dict[str, tuple[type[nn.Module], type]] = {
    "dit": (ConformerFlow, ConformerFlowConfig),
    "equivariant": (EquivariantFlow, EquivariantFlowConfig),
}
_FORMAT = "hexad.avgflow/1"


@dataclass(frozen=True)
class Checkpoint:
    """A network and what must be known to use it.

    Attributes:
        model: with the averaged weights (EMA).
        kind: `base` is integrated in many steps, `reflow` in few, `distilled` in exactly one.
        elements: that it was trained on; others are refused.
        max_atoms: of a molecule, hydrogens included; larger ones are refused.
        stereo: whether its graphs mark stereochemistry.
        sigma0: deviation of the noise it starts from, in Angstrom.
        provenance: JSON values: data, seeds, steps, machine, command.
    """

    model: ConformerFlow | EquivariantFlow
    kind: Kind
    elements: tuple[str, ...]
    max_atoms: int
    stereo: bool = True
    sigma0: float = 1.0
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)
        check_range("max_atoms", self.max_atoms, 2)
        check_range("sigma0", self.sigma0, 0, low_open=True)
        if not self.elements:
            raise InputError("a checkpoint needs the elements it was trained on")


def architecture(model: nn.Module) -> str:
    """`dit` or `equivariant`.

    Raises:
        InputError: the model is neither.
    """
    for name, (module, _) in _ARCHITECTURES.items():
        if type(model) is module:
            return name
    raise InputError(f"a {type(model).__name__} cannot be saved; use {' or '.join(_ARCHITECTURES)} networks")


def build(name: str, sizes: dict[str, Any]) -> ConformerFlow | EquivariantFlow:
    """A network with fresh weights by its architecture's name and the fields of its configuration.

    Raises:
        InputError: an unknown architecture, or sizes that it does not have.
    """
    module, config = _ARCHITECTURES[check_choice("architecture", name, _ARCHITECTURES)]
    try:
        return module(config(**sizes))  # ty: ignore[invalid-explicit-return]
    except TypeError as error:
        raise InputError(f"sizes of the {name} network: {error}") from None


def save_checkpoint(path: str | Path, checkpoint: Checkpoint, *, dtype: torch.dtype | None = None) -> None:
    """Write the checkpoint atomically.

    Args:
        path: ends in `.safetensors`.
        checkpoint: to write.
        dtype: of the stored weights, e.g. `torch.float16` for half the size; as they are where None.
    """
    described = {
        "format": _FORMAT,
        "architecture": architecture(checkpoint.model),
        "config": asdict(checkpoint.model.config),
        "kind": checkpoint.kind,
        "elements": list(checkpoint.elements),
        "max_atoms": checkpoint.max_atoms,
        "stereo": checkpoint.stereo,
        "sigma0": checkpoint.sigma0,
        "provenance": checkpoint.provenance,
    }
    weights = {
        name: tensor.detach().cpu().to(dtype or tensor.dtype).contiguous()
        for name, tensor in checkpoint.model.state_dict().items()
    }
    with atomic_path(path) as temporary:
        save_file(weights, temporary, metadata={"avgflow": json.dumps(described)})


def shipped_path(name: str | Path) -> Path:
    """The path of the shipped network of that kind, else the path itself."""
    if str(name) in KINDS:
        return Path(str(resources.files("hexad.science_ml.avgflow") / "weights")) / f"{name}.safetensors"
    return check_path(name, "checkpoint")


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read what `save_checkpoint` wrote, or by its kind a network that the package holds.

    Weights come back as float32.

    Raises:
        InputError: no such file, or it is damaged, of another kind, or of a newer format.
    """
    path = check_file(shipped_path(path), "checkpoint")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            weights = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError) as error:
        raise InputError(f"checkpoint {path} cannot be read ({error})") from None
    try:
        described = json.loads(metadata["avgflow"])
        if described["format"] != _FORMAT:
            raise InputError(
                f"checkpoint {path} has format {described['format']!r}; this version reads {_FORMAT}"
            )
        model = build(described["architecture"], described["config"])
        model.load_state_dict(weights)
        if not all(bool(weight.isfinite().all()) for weight in weights.values()):
            raise InputError(f"checkpoint {path} holds weights that are not finite")
        return Checkpoint(
            model.eval(),
            described["kind"],
            tuple(described["elements"]),
            described["max_atoms"],
            described["stereo"],
            described["sigma0"],
            described["provenance"],
        )
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        reason = str(error).splitlines()[-1].strip()
        raise InputError(f"{path} is no checkpoint of avgflow ({reason})") from None
