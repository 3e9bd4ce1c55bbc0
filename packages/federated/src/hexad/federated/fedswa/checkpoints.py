"""What a server and a client must not lose, as safetensors files written whole or not at all."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from hexad.core.errors import InputError
from hexad.core.files import atomic_path, writable_folder
from hexad.federated.fedswa.variates import VariateMemory

KEPT = 2
"""Checkpoints of a server that stay; the older is there should the newer be damaged."""


@dataclass
class ServerState:
    """A server between two rounds.

    Attributes:
        done: rounds that are over.
        theta: the global model by name.
        m: the server's control variate by name; empty for strategies without one.
        counted: for each node id the last round in which its reply was counted.
        settings: what a run that goes on must not change.
    """

    done: int
    theta: dict[str, np.ndarray]
    m: dict[str, np.ndarray] = field(default_factory=dict)
    counted: dict[int, int] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


def _write(path: Path, tensors: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
    with atomic_path(path) as temporary:
        save_file(
            {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in tensors.items()},
            temporary,
            metadata={"hexad": json.dumps(meta)},
        )


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """Arrays and what is known of them, or None where the file is damaged."""
    try:
        with safe_open(path, framework="numpy") as file:
            meta = json.loads(file.metadata()["hexad"])
            return {name: file.get_tensor(name) for name in file.keys()}, meta  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        return None


def save_server(folder: Path, state: ServerState) -> Path:
    """Write `round-<n>.safetensors` and drop all but the newest two."""
    tensors = {f"theta.{name}": array for name, array in state.theta.items()}
    tensors |= {f"m.{name}": array for name, array in state.m.items()}
    meta = {
        "done": state.done,
        "counted": {str(node): made for node, made in state.counted.items()},
        "settings": state.settings,
    }
    path = folder / f"round-{state.done:06d}.safetensors"
    _write(path, tensors, meta)
    for old in sorted(folder.glob("round-*.safetensors"))[:-KEPT]:
        old.unlink()
    return path


def load_server(folder: Path, settings: dict[str, Any]) -> ServerState | None:
    """The newest whole checkpoint in a folder, made where it is missing; None where there is none.

    Raises:
        InputError: the folder cannot be written, or the checkpoint was made with other settings.
    """
    folder = writable_folder(folder, "checkpoints")
    for path in sorted(folder.glob("round-*.safetensors"), reverse=True):
        read = _read(path)
        if read is None:
            path.replace(path.with_suffix(".damaged"))
            continue
        tensors, meta = read
        changed = {
            name: f"{name} {meta['settings'].get(name)!s:.40} -> {value!s:.40}"
            for name, value in settings.items()
            if meta["settings"].get(name) != json.loads(json.dumps(value))
        }
        if changed:
            raise InputError(
                f"{folder} holds a run with other settings ({'; '.join(changed.values())}); "
                "name another folder or delete it"
            )
        parts = {
            kind: {name[len(kind) + 1 :]: a for name, a in tensors.items() if name.startswith(f"{kind}.")}
            for kind in ("theta", "m")
        }
        counted = {int(node): made for node, made in meta["counted"].items()}
        return ServerState(meta["done"], parts["theta"], parts["m"], counted, meta["settings"])
    return None


def save_memory(path: Path, memory: VariateMemory) -> None:
    """Write a client's control variates."""
    rounds = [made for made, _ in memory.versions]
    tensors = {
        f"{place}.{name}": array
        for place, (_, variate) in enumerate(memory.versions)
        for name, array in variate.items()
    }
    _write(path, tensors, {"rounds": rounds})


def load_memory(path: Path) -> VariateMemory:
    """A client's control variates; an empty memory where there is no file, or a damaged one."""
    read = _read(path) if path.is_file() else None
    if read is None:
        return VariateMemory()
    tensors, meta = read
    return VariateMemory(
        [
            (
                made,
                {
                    name.partition(".")[2]: array
                    for name, array in tensors.items()
                    if name.partition(".")[0] == str(place)
                },
            )
            for place, made in enumerate(meta["rounds"])
        ]
    )
