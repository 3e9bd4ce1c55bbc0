"""A search on disk: its state, its history and the settings that it belongs to, in one file."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from hexad.core.errors import InputError
from hexad.core.files import atomic_path
from hexad.rl_graph.gs_poweropt.ask_tell import GSPower

_ARRAYS = ("mean", "x", "last_iterates")
COLUMNS = ("step", "evaluations", "best", "effective_samples", "step_length")


def save(path: Path, search: GSPower, history: list[tuple[float, ...]], settings: dict[str, Any]) -> None:
    """Write all that is needed to go on, atomically; `history` has a row of `COLUMNS` a step."""
    state = search.state_dict()
    arrays = {name: state.pop(name) for name in _ARRAYS}
    rows = np.array(history, dtype=np.float64).reshape(-1, len(COLUMNS))
    text = np.array(json.dumps({"state": state, "settings": settings}))
    with atomic_path(path) as temporary:
        np.savez(temporary, history=rows, text=text, **arrays)


def load(path: Path, search: GSPower, settings: dict[str, Any]) -> list[tuple[float, ...]]:
    """Set `search` to the state in a file; gives the history.

    Raises:
        InputError: the file is damaged, or of a search with other settings.
    """
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in _ARRAYS}
            history, text = file["history"], json.loads(str(file["text"]))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is no state of a search ({error}); pass --fresh to begin anew") from None
    before = text["settings"]
    for name, value in settings.items():
        if before.get(name) != value:
            raise InputError(
                f"{path.parent} holds a search with {name} = {_short(before.get(name))}, not "
                f"{_short(value)}; name another folder, or pass --fresh to begin anew"
            )
    search.load_state_dict(text["state"] | arrays)
    return [tuple(row) for row in history.tolist()]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
