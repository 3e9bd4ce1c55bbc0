"""Embedding, graph and policy on disk: safetensors, npz and JSON, each whole or not there; no pickle.

Every file bears its configuration; a graph and a policy also the digest of the embedding they belong to.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from scipy import sparse
from torch import nn

from hexad.core.errors import InputError
from hexad.core.files import atomic_path
from hexad.core.validation import check_file
from hexad.rl_graph.gas.fitting import FitConfig
from hexad.rl_graph.gas.graph import StitchGraph
from hexad.rl_graph.gas.networks import weights_digest
from hexad.rl_graph.gas.policy import PolicyConfig, SkillPolicy
from hexad.rl_graph.gas.readers import DAMAGED
from hexad.rl_graph.gas.temporal import TemporalConfig, TemporalDistance

FORMAT = "hexad.gas/2"
T = TypeVar("T")


def _as_config(kind: type[T], described: dict[str, Any]) -> T:
    """A configuration from its JSON form."""
    return kind(**described | {"fit": FitConfig(**described["fit"])})


def _save_modules(path: Path, modules: nn.Module, described: dict[str, Any]) -> None:
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in modules.state_dict().items()}
    described = {"format": FORMAT, "weights": weights_digest(tensors), **described}
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata={"gas": json.dumps(described)})


def _load_modules(path: Path, make: Callable[[dict[str, Any]], tuple[T, nn.ModuleDict]]) -> T:
    """Read what `_save_modules` wrote; `make` builds the object from the description."""
    check_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            described = json.loads((file.metadata() or {})["gas"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        if described["format"] != FORMAT:
            raise InputError(f"{path} has format {described['format']!r}; this version reads {FORMAT}")
        made, modules = make(described)
        modules["scaler"].to(tensors["scaler.mean"].dtype)
        modules.load_state_dict(tensors)
        if weights_digest(modules.state_dict()) != described["weights"]:
            raise InputError(f"{path} is damaged: its weights are not those that were saved")
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise InputError(f"{path} holds weights that are not finite")
        return made
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        reason = str(error).splitlines()[-1].strip() if str(error) else type(error).__name__
        raise InputError(f"{path} is no file of gas ({reason})") from None


def save_temporal(path: str | Path, temporal: TemporalDistance) -> None:
    """Write an embedding to a `.safetensors` file."""
    described = {"obs_dim": temporal.obs_dim, "config": dataclasses.asdict(temporal.config)}
    described["data"] = temporal.data
    _save_modules(Path(path), temporal.modules(), described)


def load_temporal(path: str | Path) -> TemporalDistance:
    """Read what `save_temporal` wrote.

    Raises:
        InputError: no such file, or it is damaged or of another kind.
    """

    def make(described: dict[str, Any]) -> tuple[TemporalDistance, nn.ModuleDict]:
        made = TemporalDistance(described["obs_dim"], _as_config(TemporalConfig, described["config"]))
        made.data = described["data"]
        return made, made.modules()

    return _load_modules(Path(path), make)


def save_policy(path: str | Path, policy: SkillPolicy) -> None:
    """Write a policy to a `.safetensors` file."""
    sizes = {
        name: getattr(policy, name) for name in ("obs_dim", "act_dim", "latent_dim", "encoder", "horizon")
    }
    _save_modules(Path(path), policy.modules(), sizes | {"config": dataclasses.asdict(policy.config)})


def load_policy(path: str | Path) -> SkillPolicy:
    """Read what `save_policy` wrote.

    Raises:
        InputError: no such file, or it is damaged or of another kind.
    """

    def make(described: dict[str, Any]) -> tuple[SkillPolicy, nn.ModuleDict]:
        sizes = (described["obs_dim"], described["act_dim"], described["latent_dim"])
        made = SkillPolicy(*sizes, _as_config(PolicyConfig, described["config"]))
        made.encoder, made.horizon = described["encoder"], described["horizon"]
        return made, made.modules()

    return _load_modules(Path(path), make)


_SCALARS = ("horizon", "te_threshold", "encoder", "kept", "repairs")


def save_graph(path: str | Path, graph: StitchGraph) -> None:
    """Write a graph to an `.npz` file without pickles."""
    arrays: dict[str, Any] = {"nodes": graph.nodes, "counts": graph.counts}
    arrays |= {name: getattr(graph.weights, name) for name in ("data", "indices", "indptr")}
    if graph.observations is not None:
        arrays["observations"] = graph.observations
    described = {"format": FORMAT} | {name: getattr(graph, name) for name in _SCALARS}
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, description=np.array(json.dumps(described)), **arrays)


def load_graph(path: str | Path) -> StitchGraph:
    """Read what `save_graph` wrote.

    Raises:
        InputError: no such file, or it is damaged or of another kind.
    """
    path = check_file(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            described = json.loads(str(file["description"]))
            arrays = {name: file[name] for name in file.files}
        if described["format"] != FORMAT:
            raise InputError(f"{path} has format {described['format']!r}; this version reads {FORMAT}")
        size = (len(arrays["nodes"]),) * 2
        weights = sparse.csr_array((arrays["data"], arrays["indices"], arrays["indptr"]), shape=size)
        weights.check_format()
        return StitchGraph(
            nodes=arrays["nodes"],
            weights=weights,
            counts=arrays["counts"],
            observations=arrays.get("observations"),
            **{name: described[name] for name in _SCALARS},
        )
    except (KeyError, TypeError, *DAMAGED) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is no graph of gas ({error})") from None
