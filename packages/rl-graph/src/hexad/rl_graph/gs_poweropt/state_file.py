"""A search on disk: its state, its history, the best point of all, and the settings that it belongs to."""

import json
import math
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from hexad.core.errors import InputError
from hexad.core.files import atomic_path
from hexad.rl_graph.gs_poweropt.ask_tell import GSPower

_ARRAYS = ("mean", "x", "last_iterates")
COLUMNS = ("step", "evaluations", "best", "effective_samples", "step_length")


@dataclass
class Best:
    """The best point that runs in a folder have found, after their last step too, as by polishing.

    The search's own best is that of its steps, so that it goes on as if it had never ended.
    """

    fun: float = math.inf
    x: Float[np.ndarray, " d"] = field(default_factory=lambda: np.empty(0))

    def take(self, search: GSPower) -> None:
        """Take the search's best if it is better."""
        if search.fun < self.fun:
            self.fun, self.x = search.fun, search.x


def save(
    path: Path, state: dict[str, Any], history: list[tuple[float, ...]], settings: dict[str, Any], best: Best
) -> None:
    """Write all that is needed to go on, atomically.

    Args:
        path: of the file.
        state: of `GSPower.state_dict`, between two steps.
        history: a row of `COLUMNS` a step.
        settings: of the run, as JSON values.
        best: of all that was evaluated.
    """
    arrays = {name: state[name] for name in _ARRAYS}
    rows = np.array(history, dtype=np.float64).reshape(-1, len(COLUMNS))
    rest = {name: value for name, value in state.items() if name not in _ARRAYS}
    text = np.array(json.dumps({"state": rest, "settings": settings, "best": best.fun}))
    with atomic_path(path) as temporary:
        np.savez(temporary, history=rows, text=text, best=best.x, **arrays)


def load(path: Path, search: GSPower, settings: dict[str, Any]) -> tuple[list[tuple[float, ...]], Best]:
    """Set `search` to the state in a file; gives the history and the best point.

    Raises:
        InputError: the file is damaged, or of a search with other settings.
    """
    fresh = "pass --fresh to begin anew"
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in _ARRAYS}
            rows, best_x, text = (
                file["history"].astype(np.float64),
                file["best"],
                json.loads(str(file["text"])),
            )
        before, state, best = text["settings"], text["state"] | arrays, float(text["best"])
        shapes = rows.shape == (state["nit"], len(COLUMNS)), best_x.shape in ((0,), search.mean.shape)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path} is no state of a search ({error}); {fresh}") from None
    for name, value in settings.items():
        if before.get(name) != value:
            raise InputError(
                f"{path.parent} holds a search with {name} = {_short(before.get(name))}, not "
                f"{_short(value)}; name another folder, or {fresh}"
            )
    if not all(shapes) or not (best < math.inf) == bool(best_x.size):
        raise InputError(f"{path} is damaged (its history or its best point); {fresh}")
    try:
        search.load_state_dict(state)
    except InputError as error:
        raise InputError(f"{path} cannot be gone on from: {error}; {fresh}") from None
    return [tuple(row) for row in rows.tolist()], Best(best, best_x)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
