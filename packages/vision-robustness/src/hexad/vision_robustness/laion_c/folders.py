"""Distort a folder of images: in parallel, resumable, and never writing into the input folder."""

import hashlib
import os
import tempfile
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hexad.core.errors import InputError
from hexad.core.files import writable_folder
from hexad.core.validation import check_folder
from hexad.vision_robustness.images import find_images, read_image
from hexad.vision_robustness.laion_c.manifest import TILES_NAME, Manifest, open_manifest
from hexad.vision_robustness.laion_c.runs import ApplySummary, Run, refusal
from hexad.vision_robustness.laion_c.tile_sources import make_bank
from hexad.vision_robustness.laion_c.tiles import TileBank
from hexad.vision_robustness.laion_c.workers import ApplyConfig


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
            the outputs are deleted, other files never. With `strict`, every image is read first.
        progress: called with (outputs done, outputs in all, what is being done).

    Raises:
        InputError: before anything is written, if a folder or setting is wrong; with `strict`, at an image.
        HexadError: an output cannot be written, or a worker process died.
        KeyboardInterrupt: at Ctrl-C, once each worker's file in hand is finished and the record written.
    """
    config = config or ApplyConfig()
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise InputError(f"jobs is {jobs!r}; it must be an integer of at least 1")
    source, target = check_folder(source, "input folder"), Path(target)
    with _alone(target):
        return _apply(source, target, config, jobs, strict, overwrite, progress)


@contextmanager
def _alone(target: Path) -> Generator[None]:
    """Refuse a second run into a folder, on this machine: their records would overwrite each other.

    The lock lies outside, since a folder that is refused must not be made or changed.
    """
    key = hashlib.sha256(os.fsencode(target.resolve())).hexdigest()[:24]
    user = os.getuid() if hasattr(os, "getuid") else 0
    lock = FileLock(Path(tempfile.gettempdir()) / f"hexad-laion-c-{user}-{key}.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(f"another run is writing to {target}; wait for it, or name another folder") from None
    try:
        yield
    finally:
        lock.release()


def _apply(
    source: Path,
    target: Path,
    config: ApplyConfig,
    jobs: int,
    strict: bool,
    overwrite: bool,
    progress: Callable[[int, int, str], Any],
) -> ApplySummary:
    images, unread = _find(source, target)
    manifest = open_manifest(target, config.settings, overwrite=overwrite)
    run = Run(config, source, images, unread, manifest, progress)
    run.name_outputs(anew=overwrite)
    if strict and unread:
        name, reason = next(iter(unread.items()))
        raise refusal(source / name, reason)
    gone = [] if overwrite else _gone(manifest, run.images, unread)
    check_place(target, "output folder")
    if strict and overwrite and manifest.images:
        progress(0, run.total, "checking")
        _check_readable(images)
    bank = _make_tiles(run, keep=not overwrite) if config.needs_tiles else None

    # All is checked: from here on files are touched.
    writable_folder(target, "output folder")
    if overwrite:
        manifest.remove_outputs()
    run.begin(gone, bank)
    run.distort(jobs, strict=strict)
    return run.summary


def check_place(folder: Path, what: str) -> None:
    """Prove that a folder can be made, or written where it exists, and leave no trace.

    Raises:
        InputError: it cannot.
    """
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    writable_folder(place, what)


def _find(source: Path, target: Path) -> tuple[list[Path], dict[str, str]]:
    """The images, and why links and folders cannot be read, by their paths below `source`."""
    _check_apart(source, target, {source})
    missed: dict[Path, str] = {}
    images = find_images(source, missed)
    _check_apart(source, target, {path.parent for path in images})
    return images, {path.relative_to(source).as_posix(): reason for path, reason in sorted(missed.items())}


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


def _gone(manifest: Manifest, sources: Iterable[str], unread: dict[str, str]) -> list[str]:
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


def _check_readable(images: list[Path]) -> None:
    """Raise at the first image that cannot be read, while what an earlier run made of it is still there."""

    def check(path: Path) -> None:
        read_image(path)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            for _ in pool.map(check, images):
                pass
        except InputError as error:
            raise InputError(f"{error}; without --strict it is skipped") from None


def _make_tiles(run: Run, *, keep: bool) -> tuple[TileBank, dict[str, Any]] | None:
    """The bank and its description, or None where the one that is kept beside the manifest serves."""
    folder = run.manifest.folder
    before = run.manifest.tiles if keep else None
    saved = folder / TILES_NAME
    if before is not None and saved.is_file():
        try:
            if TileBank.load(saved).digest() == before["sha256"]:
                return None
        except InputError:
            # Damaged: it is made anew below, and must come out the same.
            pass
    bank, described = make_bank(
        run.config.tiles,
        run.source,
        list(run.images.values()),
        lambda part: run.progress(0, run.total, f"tiles {part:.0%}"),
    )
    if before is not None and before["sha256"] != described["sha256"]:
        raise InputError(
            f"the tiles ({described['from']}) are not those that {folder} was begun with "
            f"({before['from']}); name another folder, or pass --overwrite"
        )
    return bank, described
