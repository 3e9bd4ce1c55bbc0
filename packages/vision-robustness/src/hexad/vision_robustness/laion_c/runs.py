"""One run of `apply_folder` once all is checked: what is left to make, and the record of what is made."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from hexad.core.data import file_hash
from hexad.core.errors import InputError
from hexad.vision_robustness.laion_c.distortions import DISTORTIONS
from hexad.vision_robustness.laion_c.interrupts import put_off_interrupt
from hexad.vision_robustness.laion_c.levels import LEVELS
from hexad.vision_robustness.laion_c.manifest import TILES_NAME, Manifest
from hexad.vision_robustness.laion_c.names import output_name, output_stems
from hexad.vision_robustness.laion_c.pool import Runner
from hexad.vision_robustness.laion_c.tiles import TileBank
from hexad.vision_robustness.laion_c.workers import OUTPUT_SUFFIXES, ApplyConfig, Cell, Done, Job, Worker

LONGEST_NAME = 255
"""Bytes of a file's name that file systems take."""


@dataclass
class ApplySummary:
    """What a run did.

    Attributes:
        images: number of images found.
        written: outputs made in this run.
        kept: outputs that an earlier run had made.
        removed: outputs of an earlier run that were deleted, since their image is gone or has changed.
        skipped: why an image, link or folder could not be read, by its path below the input folder.
        alpha: images whose alpha was composited on white in this run.
        tiles: where the tiles came from, or None.
        folder: the output folder.
    """

    images: int
    folder: Path
    written: int = 0
    kept: int = 0
    removed: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    alpha: int = 0
    tiles: dict[str, Any] | None = None


class Run:
    """Distorts the images of a folder, or goes on doing so.

    Args:
        config: what is made.
        source: the input folder.
        images: its images.
        unread: why links and folders in it could not be read, by their paths below it.
        manifest: the record of the output folder.
        progress: called with (outputs done, outputs in all, what is being done).
    """

    def __init__(
        self,
        config: ApplyConfig,
        source: Path,
        images: list[Path],
        unread: dict[str, str],
        manifest: Manifest,
        progress: Callable[[int, int, str], Any],
    ) -> None:
        self.config, self.source, self.manifest, self.progress = config, source, manifest, progress
        self.images = {path.relative_to(source).as_posix(): path for path in images}
        self.summary = ApplySummary(len(images), manifest.folder, skipped=dict(unread))
        self._unread = unread
        self._suffix = OUTPUT_SUFFIXES[config.format]
        self._stems: dict[str, str] = {}

    @property
    def total(self) -> int:
        """Outputs in all."""
        return len(self.images) * len(self.config.types) * len(self.config.levels)

    def begin(self, gone: list[str], bank: tuple[TileBank, dict[str, Any]] | None) -> None:
        """Delete what is outdated or was left half done, and save the tiles where they are new.

        Args:
            gone: images of the manifest that the input folder no longer holds.
            bank: tiles and their description, if they are to be saved.
        """
        manifest = self.manifest
        self.summary.removed = sum(len(manifest.forget(name)) for name in gone)
        manifest.write(complete=False)  # before any other file: it is what makes the folder one of ours
        if bank is not None:
            manifest.tiles = bank[1]
            bank[0].save(manifest.folder / TILES_NAME)
        self.summary.tiles = manifest.tiles if self.config.needs_tiles else None
        if not manifest.complete:
            manifest.remove_leftovers(
                output_name(stem, name, level, self._suffix)
                for stem in self._stems.values()
                for name in DISTORTIONS
                for level in LEVELS
            )
        manifest.write(complete=False)
        # What was skipped before is tried again: the file may have been mended.
        manifest.skipped = dict(self._unread)

    def name_outputs(self, *, anew: bool) -> None:
        """Choose what outputs are called; images are left out whose names have no room for it.

        Args:
            anew: whatever the manifest's outputs are called.
        """
        images = {} if anew else self.manifest.images
        recorded = {name: next(iter(record["outputs"]), "") for name, record in images.items()}
        self._stems = output_stems(self.images, recorded, self._suffix)
        for name, stem in self._stems.items():
            longest = max(
                len(os.fsencode(PurePosixPath(output_name(stem, kind, 1, self._suffix)).name))
                for kind in self.config.types
            )
            if longest > LONGEST_NAME:
                del self.images[name]
                self._unread[name] = (
                    f"its outputs' names would have {longest} bytes, more than {LONGEST_NAME}: shorten it"
                )
        self.summary.skipped.update(self._unread)

    def distort(self, jobs: int, *, strict: bool) -> None:
        """Make what is missing, in `jobs` processes; the manifest is written however this ends."""
        worker = Worker(self.config, self.source, self.manifest.folder)
        complete = False
        with put_off_interrupt() as interrupted:
            try:
                with Runner(worker, jobs) as runner:
                    try:
                        for done in runner.run(map(self._job, self.images), interrupted):
                            self._record(done)
                            if strict and done.error:
                                raise refusal(self.source / done.job.source, done.error)
                            self.manifest.write_now_and_then()
                            self._tell(done.job.source)
                    except Exception:
                        for done in runner.stop():
                            self._record(done)
                        raise
                complete = not self.summary.skipped and not interrupted()
            finally:
                self.manifest.write(complete=complete)

    def _job(self, name: str) -> Job:
        """What is still to be made of an image; the rest is counted as kept."""
        try:
            sha256 = file_hash(self.images[name])
        except OSError as error:
            # The worker says why; what an earlier run made of it stays.
            sha256 = f"unread: {error}"
        cells = [
            Cell(kind, level, output_name(self._stems[name], kind, level, self._suffix))
            for kind in self.config.types
            for level in self.config.levels
        ]
        before = self.manifest.images.get(name)
        if before and before["sha256"] != sha256 and not sha256.startswith("unread"):
            # What is made anew is not counted.
            self.summary.removed += len(self.manifest.forget(name) - {cell.output for cell in cells})
        finished = self.manifest.finished(name, sha256)
        todo = tuple(cell for cell in cells if cell.output not in finished)
        self.summary.kept += len(cells) - len(todo)
        return Job(name, sha256, todo)

    def _record(self, done: Done) -> None:
        name = done.job.source
        if done.error:
            self.manifest.skipped[name] = self.summary.skipped[name] = done.error
        else:
            self.manifest.add(name, done.job.sha256, done.outputs)
            self.summary.written += len(done.outputs)
            self.summary.alpha += done.alpha

    def _tell(self, note: str) -> None:
        failed = len(self.summary.skipped) - len(self._unread)
        finished = self.summary.written + self.summary.kept
        finished += failed * len(self.config.types) * len(self.config.levels)
        self.progress(finished, self.total, note)


def refusal(path: Path, reason: str) -> InputError:
    """What `strict` raises where something cannot be read."""
    return InputError(f"{path}: {reason}; without --strict it is skipped")
