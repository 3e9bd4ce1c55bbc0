"""Named arrays with a note beside them, as safetensors files that are written whole or not at all."""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from hexad.core.files import atomic_path


def write_arrays(path: Path, arrays: dict[str, np.ndarray], note: dict[str, Any]) -> None:
    """Write arrays and a note of JSON values."""
    whole = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
    with atomic_path(path) as temporary:
        metadata = {"hexad": json.dumps(note), "checksum": _checksum(whole)}
        save_file(whole, temporary, metadata=metadata)


def _checksum(arrays: dict[str, np.ndarray]) -> str:
    """CRC-32 of all arrays' bytes."""
    found = 0
    for name in sorted(arrays):
        found = zlib.crc32(arrays[name].tobytes(), found)
    return f"{found:08x}"


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
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            whole = file.metadata().get("checksum") == _checksum(arrays)
    except (SafetensorError, OSError):
        return None
    return (arrays, note) if whole else None
