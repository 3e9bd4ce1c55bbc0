"""The records of a study on disk: a Parquet part for each finished trial, and a manifest.

    <folder>/manifest.json          study, preset, configuration, environments
    <folder>/records/<arm>--<seed>.parquet   the long-form records of one trial
    <folder>/trials/<arm>--<seed>/  the trial's own folder (checkpoints, arrays for the figures)
    <folder>/errors/<arm>--<seed>.txt        the traceback of a trial that failed

A part is written whole or not at all, so a run that is killed loses only the trial it was in, and damage to
one file costs one trial. `records/` read as a Parquet data set is the one table of the study.
"""

import contextlib
import datetime
import hashlib
import json
import shutil
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from filelock import FileLock, Timeout

from hexad.core.errors import InputError
from hexad.core.files import atomic_open, atomic_path, writable_folder, write_json
from hexad.core.studies import Outcome, Study, Task, describe_config

SCHEMA = {
    "study": pl.String,
    "arm": pl.String,
    "seed": pl.Int64,
    "case": pl.String,
    "metric": pl.String,
    "value": pl.Float64,
    "unit": pl.String,
}
_META = "hexad"


def _digest(frame: pl.DataFrame) -> str:
    """A hash of the records' content: Parquet itself would not notice a flipped bit in a number.

    Of Python's own words for it, which no version of Polars changes.
    """
    return hashlib.sha256(repr(frame.rows()).encode()).hexdigest()


def _stem(arm: str, seed: int) -> str:
    return f"{arm}--{seed}"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclass
class Store:
    """The records of one study at one preset; make it with `open_store`.

    Attributes:
        folder: where everything lies.
        finished: seconds of each finished (arm, seed).
        warnings: what the user must be told, such as a damaged file that was set aside.
    """

    study: Study
    preset: str
    config: Any
    folder: Path
    manifest: dict[str, Any]
    finished: dict[tuple[str, int], float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    _frames: dict[tuple[str, int], pl.DataFrame] = field(default_factory=dict, repr=False)

    @property
    def records(self) -> pl.DataFrame:
        """All finished trials' records as one table with the columns of `SCHEMA`."""
        frames = [self._frames[key] for key in sorted(self._frames)]
        return pl.concat(frames) if frames else pl.DataFrame(schema=SCHEMA)

    def trial_folder(self, arm: str, seed: int) -> Path:
        """The trial's own folder (made when the trial runs)."""
        return self.folder / "trials" / _stem(arm, seed)

    def save(self, task: Task, outcome: Outcome) -> None:
        """Store a finished trial, or the error of a failed one."""
        stem = _stem(task.arm, task.seed)
        error_file = self.folder / "errors" / f"{stem}.txt"
        if outcome.error:
            error_file.parent.mkdir(exist_ok=True)
            with atomic_open(error_file) as file:
                file.write(outcome.traceback or outcome.error)
            return
        frame = pl.DataFrame(
            [
                (
                    self.study.name,
                    task.arm,
                    task.seed,
                    item.case,
                    item.metric,
                    float(item.value),
                    self.study.metric(item.metric).unit,
                )
                for item in outcome.measurements
            ],
            schema=SCHEMA,
            orient="row",
        )
        environment = hashlib.sha256(json.dumps(outcome.environment, sort_keys=True).encode()).hexdigest()[
            :12
        ]
        meta = {
            "digest": _digest(frame),
            "seconds": outcome.seconds,
            "finished": _now(),
            "environment": environment,
        }
        # The manifest first: a crash between the two leaves an environment without a record, which harms
        # nobody, and not a record whose environment is unknown.
        self.manifest["environments"][environment] = outcome.environment
        self.manifest["updated"] = meta["finished"]
        self.write_manifest()
        with atomic_path(self.folder / "records" / f"{stem}.parquet") as path:
            frame.write_parquet(path, metadata={_META: json.dumps(meta)})
        error_file.unlink(missing_ok=True)
        self._frames[task.arm, task.seed] = frame
        self.finished[task.arm, task.seed] = outcome.seconds

    def write_manifest(self) -> None:
        """Bring the manifest on disk up to date."""
        write_json(self.folder / "manifest.json", self.manifest)

    def errors(self) -> dict[tuple[str, int], str]:
        """The last line of each failed trial's error, by arm and seed."""
        found = {}
        for arm in self.study.arms:
            for path in sorted((self.folder / "errors").glob(f"{arm.name}--*.txt")):
                key = arm.name, int(path.stem.rsplit("--", 1)[1])
                if key in self.finished:  # killed after the record was written
                    continue
                lines = path.read_text(encoding="utf-8").strip().splitlines()
                found[key] = lines[-1] if lines else "unknown error"
        return found

    def _load(self) -> None:
        for path in sorted((self.folder / "records").glob("*.parquet")):
            if path.name.startswith("."):  # half of a file, of a run that was killed; the lock is ours
                path.unlink()
                continue
            try:
                meta = json.loads(pl.read_parquet_metadata(path)[_META])
                # memory_map would keep a file open that is about to be replaced.
                frame = pl.read_parquet(path, memory_map=False)
                if dict(frame.schema) != SCHEMA or _digest(frame) != meta["digest"]:
                    raise ValueError("its content does not match its digest")
            except (OSError, MemoryError) as error:
                raise InputError(f"{path} cannot be read ({error}); mend that and try again") from None
            except (Exception, pl.exceptions.PanicException) as error:  # a panic is a BaseException
                aside = path.with_suffix(".parquet.damaged")
                path.replace(aside)
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                self.warnings.append(
                    f"{path} is damaged ({reason}); set aside as {aside.name}, its trial runs again"
                )
                continue
            if frame.is_empty():
                continue
            key = (frame["arm"][0], frame["seed"][0])
            self._frames[key] = frame
            self.finished[key] = meta["seconds"]


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a store, None where the folder has none.

    Raises:
        InputError: it is no JSON of ours.
    """
    path = folder / "manifest.json"
    if not path.is_file():
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if not {"study", "preset", "version", "config", "environments"} <= set(manifest):
            raise ValueError("keys are missing")
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{path} is damaged ({error}); move the folder away or measure again with --fresh"
        ) from None
    return manifest


def locate(folder: Path) -> tuple[Path, str, str]:
    """The results folder that `folder` is or lies in, and the study and preset it stands for ("" for all).

    Raises:
        InputError: it is a study that does not lie in its place, `<results>/<study>/<preset>`.
    """
    whole = folder.resolve()
    manifest = read_manifest(whole)
    if manifest is not None:
        place = (manifest["study"], manifest["preset"])
        if (whole.parent.name, whole.name) != place:
            raise InputError(
                f"{folder} holds {' at preset '.join(place)}, set aside or moved from its place; make it "
                f"<results>/{'/'.join(place)} to report it"
            )
        return whole.parents[1], *place
    for path in whole.glob("*/manifest.json"):
        with contextlib.suppress(InputError):  # another tool's manifest, or a damaged one, tells nothing
            manifest = read_manifest(path.parent)
            if manifest is not None and manifest["study"] == whole.name:
                return whole.parent, whole.name, ""
    return folder, "", ""


def _fitting_manifest(folder: Path, study: Study, config: Any) -> dict[str, Any] | None:
    """The manifest of a store, None where there is none yet.

    Raises:
        InputError: its records were measured with another configuration or version of the study.
    """
    manifest = read_manifest(folder)
    described = describe_config(config)
    if manifest is None or (manifest["version"] == study.version and manifest["config"] == described):
        return manifest
    changed = [
        f"{key}: {manifest['config'].get(key)} -> {described.get(key)}"
        for key in sorted(set(manifest["config"]) | set(described))
        if manifest["config"].get(key) != described.get(key)
    ] or [f"version: {manifest['version']} -> {study.version}"]
    raise InputError(
        f"{folder} was measured with other settings ({'; '.join(changed)}); "
        "--fresh sets it aside, --out names another folder"
    )


def check_store(root: Path, study: Study, preset: str) -> None:
    """Raise the `InputError` that `open_store` would, before anything else is measured."""
    _fitting_manifest(root / study.name / preset, study, study.preset(preset).config)


@contextlib.contextmanager
def open_store(
    root: Path, study: Study, preset: str, *, config: Any = None, fresh: bool = False
) -> Generator[Store]:
    """Open (or make) the store `<root>/<study>/<preset>` and hold its lock until the block ends.

    Args:
        fresh: set what is there aside (it is renamed, not deleted) and start anew.

    Raises:
        InputError: the folder cannot be written, another process writes to it, or its records were measured
            with another configuration.
    """
    config = study.preset(preset).config if config is None else config
    # Whole: pages keep the path, and workers elsewhere have another current folder.
    root = root.resolve()
    folder = writable_folder(root / study.name / preset, "results folder")
    try:
        lock = FileLock(root / study.name / f".{preset}.lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise InputError(
            f"another process is measuring into {folder}; wait for it or name another --out"
        ) from None
    try:
        if fresh and any(folder.iterdir()):
            shutil.move(folder, f"{folder}.{datetime.datetime.now():%Y%m%d-%H%M%S-%f}")
        (folder / "records").mkdir(parents=True, exist_ok=True)
        manifest = _fitting_manifest(folder, study, config) or {
            "study": study.name,
            "preset": preset,
            "version": study.version,
            "config": describe_config(config),
            "environments": {},
            "started": _now(),
        }
        store = Store(study, preset, config, folder, manifest)
        store._load()
        if "updated" not in manifest:
            manifest["updated"] = manifest["started"]
            store.write_manifest()
        yield store
    finally:
        lock.release()
