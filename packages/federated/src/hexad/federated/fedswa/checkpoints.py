"""What a server must not lose: its state between rounds, in a folder that one run at a time has."""

import json
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hexad.core.errors import InputError
from hexad.federated.fedswa.tensor_files import read_arrays, read_note, write_arrays

KEPT = 2
"""Checkpoints that stay; the older is there should the newer be damaged."""

NAME = re.compile(r"round-\d{6,}\.safetensors")
"""Files of other names in the folder are somebody else's."""


@dataclass(frozen=True)
class ServerState:
    """A server between two rounds.

    Attributes:
        done: rounds that are over.
        theta: the global model by name.
        m: the server's control variate by name; empty for strategies without one.
        counted: for each client by its name the last round in which its reply was counted.
        run: which run this is; clients know by it whether a control variate is of this run.
        clients: the most nodes that were connected in a round that is over.
    """

    done: int
    theta: dict[str, np.ndarray]
    m: dict[str, np.ndarray] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    run: str = ""
    clients: int = 0


class Checkpoints:
    """The states of a server in a folder: the newest two.

    Args:
        folder: of `round-<n>.safetensors`.
        settings: what a run that goes on must not change, as JSON values.

    Attributes:
        counted: what the checkpoints in the folder have counted of each client.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))
        self.counted: dict[Path, dict[str, int]] = {}

    def _paths(self) -> list[Path]:
        found = [path for path in self.folder.glob("round-*.safetensors") if NAME.fullmatch(path.name)]
        return sorted(found, key=lambda path: int(path.stem.partition("-")[2]))

    def load(self) -> ServerState | None:
        """The newest whole checkpoint; None where there is none. Damaged newer ones are set aside.

        Raises:
            InputError: all are damaged, or the newest whole one was made with other settings.
        """
        damaged: list[Path] = []
        paths = self._paths()
        for place, path in reversed(list(enumerate(paths))):
            read = read_arrays(path)
            if read is None or not _complete(read[1]):
                damaged.append(path)
                continue
            self._check_settings(read[1]["settings"])
            for bad in damaged:
                aside = bad.replace(bad.with_suffix(".damaged"))
                warnings.warn(f"checkpoint {bad} is damaged; set aside as {aside.name}", stacklevel=3)
            notes = {older: read_note(older) for older in paths[: place + 1]}
            self.counted = {older: n["counted"] for older, n in notes.items() if n and _complete(n)}
            return _state(*read)
        if damaged:
            raise InputError(
                f"no checkpoint in {self.folder} is whole ({damaged[0].name} is damaged); restore one, "
                "delete them to begin anew, or name another folder"
            )
        return None

    def _check_settings(self, stored: dict[str, Any]) -> None:
        changed = [
            f"{name} {stored.get(name)!s:.40} -> {value!s:.40}"
            for name, value in self.settings.items()
            if stored.get(name) != value
        ]
        if changed:
            raise InputError(
                f"{self.folder} holds a run with other settings ({'; '.join(changed)}); "
                "name another folder or delete it"
            )

    def save(self, state: ServerState) -> Path:
        """Write a state and drop all but the newest two."""
        tensors = {f"theta.{name}": array for name, array in state.theta.items()}
        tensors |= {f"m.{name}": array for name, array in state.m.items()}
        path = self.folder / f"round-{state.done:06d}.safetensors"
        note = {
            "done": state.done,
            "run": state.run,
            "counted": state.counted,
            "clients": state.clients,
            "settings": self.settings,
        }
        write_arrays(path, tensors, note)
        self.counted[path] = dict(state.counted)
        for old in self._paths()[:-KEPT]:
            old.unlink()
            self.counted.pop(old, None)
        return path


def _complete(note: dict[str, Any]) -> bool:
    """Whether a checkpoint's note says all that a state needs."""
    kinds = {"done": int, "run": str, "counted": dict, "clients": int, "settings": dict}
    return all(isinstance(note.get(name), kind) for name, kind in kinds.items())


def _state(tensors: dict[str, np.ndarray], note: dict[str, Any]) -> ServerState:
    theta, m = (
        {name.removeprefix(f"{kind}."): a for name, a in tensors.items() if name.startswith(f"{kind}.")}
        for kind in ("theta", "m")
    )
    return ServerState(note["done"], theta, m, note["counted"], note["run"], note["clients"])
