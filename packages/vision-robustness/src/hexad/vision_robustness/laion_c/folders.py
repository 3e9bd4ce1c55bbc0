"""Distort a folder of images: in parallel, resumable, and never writing into the input folder."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from hexad.core.data import file_hash
from hexad.core.errors import InputError
from hexad.core.files import writable_folder
from hexad.core.validation import check_folder
from hexad.vision_robustness.laion_c.images import find_images
from hexad.vision_robustness.laion_c.manifest import TILES_NAME, Manifest, open_manifest
from hexad.vision_robustness.laion_c.tile_sources import make_bank
from hexad.vision_robustness.laion_c.tiles import TileBank
from hexad.vision_robustness.laion_c.workers import SUFFIXES, ApplyConfig, Cell, Job, Runner


@dataclass
class ApplySummary:
    """What a run did.

    Attributes:
        images: number of images found.
        written: outputs made in this run.
        kept: outputs that an earlier run had made.
        skipped: why an image could not be read, by its path below the input folder.
        alpha: images whose alpha was composited on white in this run.
        tiles: where the tiles came from, or None.
        folder: the output folder.
    """

    images: int
    folder: Path
    written: int = 0
    kept: int = 0
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
    same settings makes only what is missing or changed; other types and levels may be added so. An image that
    cannot be read is skipped and named in the summary.

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
    inside, outside = source.resolve(), target.resolve()
    if outside.is_relative_to(inside) or inside.is_relative_to(outside):
        raise InputError(
            f"output folder {target} and input folder {source} must lie beside each other, none in the other"
        )
    images = find_images(source)
    manifest = open_manifest(target, config.settings, overwrite=overwrite)
    outputs = _output_names([path.relative_to(source) for path in images], SUFFIXES[config.format])
    writable_folder(target, "output folder")
    if overwrite:
        manifest.remove_outputs()
    total = len(images) * len(config.types) * len(config.levels)
    summary = ApplySummary(len(images), target)
    if config.needs_tiles:
        _prepare_tiles(manifest, config, source, images, lambda part: progress(0, total, f"tiles {part:.0%}"))
    summary.tiles = manifest.tiles
    manifest.write(complete=False)
    # What was skipped before is tried again: the file may have been mended.
    manifest.skipped.clear()
    try:
        with Runner(config, source, target, jobs) as runner:
            for done in runner.run(_plan(config, source, images, outputs, manifest, summary)):
                if done.error:
                    if strict:
                        raise InputError(f"{done.error}; without --strict it is skipped")
                    manifest.skipped[done.job.source] = summary.skipped[done.job.source] = done.error
                else:
                    manifest.add(done.job.source, done.job.sha256, done.outputs)
                    summary.written += len(done.outputs)
                    summary.alpha += done.alpha
                manifest.write_now_and_then()
                cells = len(config.types) * len(config.levels)
                finished = summary.written + summary.kept + cells * len(summary.skipped)
                progress(finished, total, done.job.source)
    except BaseException:
        manifest.write(complete=False)
        raise
    manifest.write(complete=not summary.skipped)
    return summary


def _output_names(relatives: list[Path], suffix: str) -> dict[str, Callable[[str, int], str]]:
    """For each source, the function that names its outputs; two sources never share a name."""
    stems: dict[PurePosixPath, int] = {}
    for path in relatives:
        stem = PurePosixPath(path.with_suffix("").as_posix())
        stems[stem] = stems.get(stem, 0) + 1

    def namer(path: Path) -> Callable[[str, int], str]:
        stem = path.stem
        if stems[PurePosixPath(path.with_suffix("").as_posix())] > 1:
            # a.jpg and a.png lie side by side
            stem = f"{stem}_{path.suffix[1:]}"
        folder = PurePosixPath(path.parent.as_posix())
        return lambda name, level: str(
            PurePosixPath(name, f"intensity_level_{level}") / folder / f"{stem}_{name}_{level}{suffix}"
        )

    namers = {path.as_posix(): namer(path) for path in relatives}
    seen: dict[str, str] = {}
    for relative, name_of in namers.items():
        # On a file system that ignores case, a.jpg and A.jpg would meet too.
        name = name_of("mosaic", 1).lower()
        if name in seen:
            raise InputError(f"{seen[name]} and {relative} would be written to the same file; rename one")
        seen[name] = relative
    return namers


def _prepare_tiles(
    manifest: Manifest,
    config: ApplyConfig,
    source: Path,
    images: list[Path],
    progress: Callable[[float], Any],
) -> None:
    """Make the bank, and keep it beside the manifest, so that a resumed run has the same tiles."""
    saved = manifest.folder / TILES_NAME
    if manifest.tiles is not None and saved.is_file():
        try:
            if TileBank.load(saved).digest() == manifest.tiles["sha256"]:
                return
        except InputError:
            # Damaged: it is made anew below, and must come out the same.
            pass
    bank, described = make_bank(config.tiles, source, images, progress)
    if manifest.tiles is not None and manifest.tiles["sha256"] != described["sha256"]:
        raise InputError(
            f"the tiles ({described['from']}) are not those that {manifest.folder} was begun with "
            f"({manifest.tiles['from']}); name another folder, or pass --overwrite"
        )
    manifest.tiles = described
    bank.save(saved)


def _plan(
    config: ApplyConfig,
    source: Path,
    images: list[Path],
    outputs: dict[str, Callable[[str, int], str]],
    manifest: Manifest,
    summary: ApplySummary,
) -> Iterator[Job]:
    """A job for each image that is not finished; the others are counted as kept."""
    for path in images:
        relative = path.relative_to(source).as_posix()
        try:
            sha256 = file_hash(path)
        except OSError as error:
            sha256 = f"unread: {error}"
        finished = manifest.finished(relative, sha256)
        cells = [
            Cell(name, level, outputs[relative](name, level))
            for name in config.types
            for level in config.levels
        ]
        todo = tuple(cell for cell in cells if cell.output not in finished)
        summary.kept += len(cells) - len(todo)
        if todo:
            yield Job(relative, sha256, todo)
