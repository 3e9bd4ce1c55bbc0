"""Named arrays with a note beside them, as safetensors files that are written whole or not at all."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from hexad.core.files import atomic_path


def write_arrays(path: Path, arrays: dict[str, np.ndarray], note: dict[str, Any]) -> None:
    """Write arrays and a note of JSON values."""
    with atomic_path(path) as temporary:
        save_file(
            {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()},
            temporary,
            metadata={"hexad": json.dumps(note)},
        )


def read_note(path: Path) -> dict[str, Any] | None:
    """The note alone, or None where the file is damaged."""
    try:
        with safe_open(path, framework="numpy") as file:
            note = json.loads(file.metadata()["hexad"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        return None
    return note if isinstance(note, dict) else None


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """Arrays and note, or None where the file is damaged."""
    note = read_note(path)
    if note is None:
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, note  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError):
        return None
