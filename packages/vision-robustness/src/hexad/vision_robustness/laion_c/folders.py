"""Distort a folder of images: in parallel, resumable, and never writing into the input folder."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hexad.core.data import file_hash
from hexad.core.errors import InputError
from hexad.core.files import writable_folder
from hexad.core.validation import check_folder
from hexad.vision_robustness.laion_c.distortions import DISTORTIONS
from hexad.vision_robustness.laion_c.images import find_images
from hexad.vision_robustness.laion_c.levels import LEVELS
from hexad.vision_robustness.laion_c.manifest import TILES_NAME, Manifest, open_manifest
from hexad.vision_robustness.laion_c.names import output_name, output_stems
from hexad.vision_robustness.laion_c.tile_sources import make_bank
from hexad.vision_robustness.laion_c.tiles import TileBank
from hexad.vision_robustness.laion_c.workers import SUFFIXES, ApplyConfig, Cell, Done, Job, Runner


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


def apply_folder(
    source: str | Path,
    target: str | Path,
    config: ApplyConfig | None = None,
    *,
    jobs: int = 1,
    strict: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int, str], Any] = lambda done, total, note: None,
) -> ApplySummary:
    """Distort every image below `source` into `target/<type>/intensity_level_<level>/<its folders>/`.

    Each output is written whole or not at all, and named `<stem>_<type>_<level>.JPEG`. A second call with the
    same settings makes only what is missing or changed; other types and levels may be added so. The outputs
    of an image that is gone or has changed are deleted. What cannot be read is skipped and named in the
    summary. One run at a time may write to a folder.

    Args:
        source: folder of images; nothing in it is written.
        target: output folder, neither inside `source` nor around it.
        config: types, levels, size, seeds; default the benchmark's.
        jobs: worker processes; the bytes do not depend on it.
        strict: raise at the first image that cannot be read.
        overwrite: take over a folder that holds other files or was made with other settings; of the latter,
            the outputs are deleted, other files never.
        progress: called with (outputs done, outputs in all, what is being done).

    Raises:
        InputError: before anything is written, if a folder or setting is wrong; with `strict`, at an image.
        KeyboardInterrupt: after the record of what is finished has been written.
    """
    config = config or ApplyConfig()
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise InputError(f"jobs is {jobs!r}; it must be an integer of at least 1")
    source, target = check_folder(source, "input folder"), Path(target)
    _check_apart(source, target, {source})
    missed: dict[Path, str] = {}
    images = find_images(source, missed)
    _check_apart(source, target, {path.parent for path in images})
    unread = {path.relative_to(source).as_posix(): reason for path, reason in sorted(missed.items())}
    if strict and unread:
        name, reason = next(iter(unread.items()))
        raise InputError(f"{source / name}: {reason}; without --strict it is skipped")
    manifest = open_manifest(target, config.settings, overwrite=overwrite)
    sources = [path.relative_to(source).as_posix() for path in images]
    gone = [] if overwrite else _gone(manifest, sources, unread)
    check_place(target, "output folder")
    total = len(images) * len(config.types) * len(config.levels)
    bank = None
    if config.needs_tiles:
        before = None if overwrite else manifest.tiles
        bank = _make_tiles(
            target, before, config.tiles, source, images, lambda part: progress(0, total, f"tiles {part:.0%}")
        )

    # All is checked: from here on files are touched.
    writable_folder(target, "output folder")
    if overwrite:
        manifest.remove_outputs()
    summary = ApplySummary(len(images), target, skipped=dict(unread))
    summary.removed = sum(len(manifest.forget(name)) for name in gone)
    if bank is not None:
        manifest.tiles = bank[1]
        bank[0].save(target / TILES_NAME)
    summary.tiles = manifest.tiles if config.needs_tiles else None
    suffix = SUFFIXES[config.format]
    recorded = {name: next(iter(record["outputs"]), "") for name, record in manifest.images.items()}
    stems = output_stems(sources, recorded, suffix)
    if not manifest.complete:
        manifest.remove_leftovers(
            output_name(stem, name, level, suffix)
            for stem in stems.values()
            for name in DISTORTIONS
            for level in LEVELS
        )
    manifest.write(complete=False)
    # What was skipped before is tried again: the file may have been mended.
    manifest.skipped = dict(unread)

    def record(done: Done) -> None:
        if done.error:
            manifest.skipped[done.job.source] = summary.skipped[done.job.source] = done.error
        else:
            manifest.add(done.job.source, done.job.sha256, done.outputs)
            summary.written += len(done.outputs)
            summary.alpha += done.alpha

    runner = Runner(config, source, target, jobs)
    try:
        with runner:
            for done in runner.run(_plan(config, source, images, stems, manifest, summary)):
                record(done)
                if strict and done.error:
                    raise InputError(
                        f"{source / done.job.source}: {done.error}; without --strict it is skipped"
                    )
                manifest.write_now_and_then()
                failed = len(summary.skipped) - len(unread)
                finished = summary.written + summary.kept + failed * len(config.types) * len(config.levels)
                progress(finished, total, done.job.source)
    except BaseException:
        for done in runner.unreported():
            record(done)
        manifest.write(complete=False)
        raise
    manifest.write(complete=not summary.skipped)
    return summary


def check_place(folder: Path, what: str) -> None:
    """Prove that a folder can be made, or written where it exists, and leave no trace.

    Raises:
        InputError: it cannot.
    """
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    writable_folder(place, what)


def _check_apart(source: Path, target: Path, folders: set[Path]) -> None:
    """Raise where one of the input's folders, linked or not, is in the output folder or around it."""
    outside = target.resolve()
    for folder in folders:
        inside = folder.resolve()
        if outside.is_relative_to(inside) or inside.is_relative_to(outside):
            raise InputError(
                f"output folder {target} and input folder {source} must lie beside each other, "
                "none in the other"
            )


def _gone(manifest: Manifest, sources: list[str], unread: dict[str, str]) -> list[str]:
    """The images that the manifest lists and the input folder no longer holds, as far as it can be read."""
    there = set(sources)
    # An image below a folder that cannot be read at the moment is not gone.
    hidden = (*unread, *(f"{name}/" for name in unread))
    gone = [name for name in manifest.images if name not in there and not name.startswith(hidden)]
    if gone and len(gone) == len(manifest.images):
        raise InputError(
            f"{manifest.folder} was made from other images, such as {gone[0]}; name another folder, "
            "or pass --overwrite"
        )
    return gone


def _make_tiles(
    target: Path,
    before: dict[str, Any] | None,
    tiles: str,
    source: Path,
    images: list[Path],
    progress: Callable[[float], Any],
) -> tuple[TileBank, dict[str, Any]] | None:
    """The bank and its description, or None where the one that is kept beside the manifest serves."""
    saved = target / TILES_NAME
    if before is not None and saved.is_file():
        try:
            if TileBank.load(saved).digest() == before["sha256"]:
                return None
        except InputError:
            # Damaged: it is made anew below, and must come out the same.
            pass
    bank, described = make_bank(tiles, source, images, progress)
    if before is not None and before["sha256"] != described["sha256"]:
        raise InputError(
            f"the tiles ({described['from']}) are not those that {target} was begun with "
            f"({before['from']}); name another folder, or pass --overwrite"
        )
    return bank, described


def _plan(
    config: ApplyConfig,
    source: Path,
    images: list[Path],
    stems: dict[str, str],
    manifest: Manifest,
    summary: ApplySummary,
) -> Iterator[Job]:
    """A job for each image that is not finished; the others are counted as kept."""
    suffix = SUFFIXES[config.format]
    for path in images:
        relative = path.relative_to(source).as_posix()
        try:
            sha256 = file_hash(path)
        except OSError as error:
            # The worker says why; what an earlier run made of it stays.
            sha256 = f"unread: {error}"
        cells = [
            Cell(name, level, output_name(stems[relative], name, level, suffix))
            for name in config.types
            for level in config.levels
        ]
        before = manifest.images.get(relative)
        if before and before["sha256"] != sha256 and not sha256.startswith("unread"):
            # What is made anew below is not counted.
            summary.removed += len(manifest.forget(relative) - {cell.output for cell in cells})
        finished = manifest.finished(relative, sha256)
        todo = tuple(cell for cell in cells if cell.output not in finished)
        summary.kept += len(cells) - len(todo)
        if todo:
            yield Job(relative, sha256, todo)
