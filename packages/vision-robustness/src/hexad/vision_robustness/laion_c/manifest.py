"""What an output folder holds, and how it was made: `manifest.json`.

It is written when a run begins, every few seconds, and at the end; a run that was cut off loses the record
of its last seconds, and makes those files again.
"""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hexad.core.data import file_hash
from hexad.core.errors import InputError
from hexad.core.files import TEMPORARY, write_json

NAME = "manifest.json"
TILES_NAME = "tiles.npz"
FORMAT = 1
"""Raised when the same settings would give other bytes."""


@dataclass
class Manifest:
    """The record of an output folder.

    Attributes:
        folder: the output folder.
        settings: what the bytes of every output depend on, but for the image, type and level.
        tiles: where the tile bank came from, or None while no distortion needed one.
        images: by the source's path below the input folder: its sha256, and each output's seed and sha256.
        skipped: by the source's path: why it could not be read.
        complete: whether the last run came to its end.
    """

    folder: Path
    settings: dict[str, Any]
    tiles: dict[str, Any] | None = None
    images: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    complete: bool = False
    _written: float = 0.0
    _cost: float = 0.0

    def write(self, *, complete: bool) -> None:
        """Write the file, atomically."""
        start = time.monotonic()
        write_json(
            self.folder / NAME,
            {
                "format": FORMAT,
                "complete": complete,
                "settings": self.settings,
                "tiles": self.tiles,
                "versions": {
                    name: version(name)
                    for name in ("hexad-vision-robustness", "glitch-this", "numpy", "pillow")
                },
                "skipped": dict(sorted(self.skipped.items())),
                "images": dict(sorted(self.images.items())),
            },
        )
        self._written = time.monotonic()
        self._cost = self._written - start

    def write_now_and_then(self) -> None:
        """Write if the last time was two seconds ago, and writing takes under a twentieth of the time."""
        if time.monotonic() - self._written > max(2.0, 20 * self._cost):
            self.write(complete=False)

    def finished(self, source: str, sha256: str) -> set[str]:
        """Outputs of an image that are on disk as recorded; none if the image has changed since."""
        record = self.images.get(source)
        if record is None or record["sha256"] != sha256:
            return set()
        return {
            name
            for name, output in record["outputs"].items()
            if (self.folder / name).is_file() and file_hash(self.folder / name) == output["sha256"]
        }

    def add(self, source: str, sha256: str, outputs: dict[str, dict[str, Any]]) -> None:
        """Record the outputs of an image, beside those it had if it has not changed."""
        before = self.images.get(source)
        if before is not None and before["sha256"] == sha256:
            outputs = before["outputs"] | outputs
        self.images[source] = {"sha256": sha256, "outputs": outputs}
        self.skipped.pop(source, None)

    def forget(self, source: str) -> set[str]:
        """Delete the outputs of an image, and folders that this empties; the names of what it had."""
        names = set(self.images.pop(source)["outputs"])
        root = self.folder.resolve()
        for name in names:
            path = (root / name).resolve()
            if not path.is_relative_to(root):
                continue
            try:
                path.unlink(missing_ok=True)
                for parent in path.parents:
                    if parent == root or not parent.is_dir() or any(parent.iterdir()):
                        break
                    parent.rmdir()
            except OSError as error:
                raise InputError(
                    f"{path} is outdated and cannot be deleted ({error.strerror}); make its folder writable"
                ) from None
        return names

    def remove_outputs(self) -> None:
        """Delete the files that it lists, and nothing else."""
        for source in list(self.images):
            self.forget(source)
        (self.folder / TILES_NAME).unlink(missing_ok=True)
        self.skipped.clear()
        self.tiles = None

    def remove_leftovers(self, outputs: Iterable[str]) -> None:
        """Delete the temporary files of a killed run: those that `atomic_path` makes for one of `outputs`."""
        found: dict[tuple[Path, str, str], list[Path]] = {}
        for path in self.folder.rglob(".*"):
            if match := TEMPORARY.fullmatch(path.name):
                found.setdefault((path.parent, match[1], match[2]), []).append(path)
        if not found:
            return
        for name in (*outputs, NAME, TILES_NAME):
            target = self.folder / name
            for path in found.pop((target.parent, f".{target.stem[:40]}-", target.suffix), ()):
                path.unlink(missing_ok=True)


def open_manifest(folder: Path, settings: dict[str, Any], *, overwrite: bool) -> Manifest:
    """The manifest of an output folder: a new one, or the one that a run with the same settings began.

    With `overwrite`, a folder of other settings is taken over: `Manifest.remove_outputs` is for the caller,
    when all else has been checked.

    Raises:
        InputError: without `overwrite`, where the folder holds other files or was made with other settings.
    """
    path = folder / NAME
    if not path.is_file():
        others = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        others = sorted(name for name in others if not name.startswith("."))
        if others and not overwrite:
            raise InputError(
                f"{folder} is not empty (it holds {others[0]!r}) and has no {NAME}; "
                "name another folder, or pass --overwrite"
            )
        return Manifest(folder, settings)
    try:
        manifest = _read(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error})") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # Which files are ours only it could tell; left beside new ones, evaluate would score them too.
        what = str(error) if type(error) is ValueError else "it is not what laion-c wrote"
        raise InputError(f"{path} is damaged ({what}); delete {folder}, or name another folder") from None
    if overwrite:
        manifest.settings = settings
    else:
        _check_alike(manifest, settings)
        manifest.settings = manifest.settings | settings
    return manifest


def _read(path: Path) -> Manifest:
    """Read what `Manifest.write` wrote; whatever error its damage leads to."""
    found = json.loads(path.read_text(encoding="utf-8"))
    if found["format"] != FORMAT:
        raise ValueError(f"its format is {found['format']!r}, that of this version {FORMAT}")
    manifest = Manifest(
        path.parent,
        found["settings"],
        found["tiles"],
        found["images"],
        found["skipped"],
        found.get("complete") is True,
    )
    for record in manifest.images.values():
        if not isinstance(record["outputs"], dict) or not isinstance(record["sha256"], str):
            raise TypeError("an image's record is damaged")
    return manifest


def _check_alike(manifest: Manifest, settings: dict[str, Any]) -> None:
    # The first type that needs tiles says which; until then none are recorded.
    before = {"tiles": settings.get("tiles")} | manifest.settings
    different = [
        f"{key} {before.get(key)!r} instead of {value!r}"
        for key, value in settings.items()
        if before.get(key) != value
    ]
    if different:
        raise InputError(
            f"{manifest.folder} was made with {', '.join(different)}; name another folder, "
            "or pass --overwrite"
        )
