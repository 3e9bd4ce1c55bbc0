"""Run a study: plan the trials, skip the finished ones, store each as it ends, judge the claims."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import polars as pl

from hexad.core.engines import EngineName, check_engine, run_tasks
from hexad.core.store import Store, open_store
from hexad.core.studies import Results, Study, Task
from hexad.core.validation import check_count
from hexad.core.verdicts import Judgement, judge_all


@dataclass(frozen=True)
class Event:
    """Something a watcher of a running study may show.

    `plan` comes once (total trials, how many are already finished); `progress`, `done` and `failed` name a
    trial; `warning` carries a message.
    """

    kind: Literal["plan", "progress", "done", "failed", "warning"]
    label: str = ""
    note: str = ""
    fraction: float = 0.0
    total: int = 0
    finished: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Proof:
    """What a study measured and the verdicts.

    Attributes:
        records: the long-form table (study, arm, seed, case, metric, value, unit).
        judgements: one for each claim.
        errors: the last line of each failed trial's error, by arm and seed.
        failed: the trials that failed in this very run.
        folder: the store.
    """

    study: Study
    preset: str
    records: pl.DataFrame
    judgements: list[Judgement]
    errors: dict[tuple[str, int], str]
    folder: Path
    results: Results
    seconds: float
    resumed: int = 0
    failed: list[tuple[str, int]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def run_study(
    study: Study,
    preset: str = "quick",
    *,
    out: str | Path = "hexad-results",
    seeds: int | None = None,
    arms: Sequence[str] = (),
    engine: EngineName = "local",
    workers: int = 1,
    fresh: bool = False,
    watch: Callable[[Event], None] | None = None,
) -> Proof:
    """Measure what is not yet measured, and judge the study's claims by all records.

    Args:
        study: the study.
        preset: one of its presets.
        out: results folder; records go to `<out>/<study>/<preset>/`.
        seeds: how many seeds, instead of the preset's number.
        arms: measure these alone.
        engine: see `hexad.core.engines.run_tasks`.
        workers: likewise. Times measured by several workers at once disturb each other.
        fresh: set earlier records aside and measure anew.
        watch: called with each `Event`.

    Raises:
        InputError: unknown preset, arm or engine, fewer than one seed, a folder that cannot be written.
    """
    check_engine(engine, workers)
    tell = watch or (lambda event: None)
    chosen = study.preset(preset)
    n_seeds = chosen.seeds if seeds is None else check_count("seeds", seeds)
    names = list(dict.fromkeys(study.arm(name).name for name in arms)) or [arm.name for arm in study.arms]
    start = time.perf_counter()
    with open_store(Path(out), study, preset, config=chosen.config, fresh=fresh) as store:
        for warning in store.warnings:
            tell(Event("warning", note=warning))
        # Seeds outermost: an interrupted run has all arms at the first seeds, which can be compared.
        wanted = [(arm, seed) for seed in range(n_seeds) for arm in names]
        tasks = [
            Task(study, arm, seed, chosen.config, store.trial_folder(arm, seed))
            for arm, seed in wanted
            if (arm, seed) not in store.finished
        ]
        resumed = len(wanted) - len(tasks)
        tell(Event("plan", total=len(wanted), finished=resumed))

        def progress(task: Task, fraction: float, note: str) -> None:
            tell(Event("progress", label=task.label, fraction=fraction, note=note))

        failed: list[tuple[str, int]] = []
        for task, outcome in run_tasks(tasks, engine=engine, workers=workers, progress=progress):
            store.save(task, outcome)
            if outcome.error:
                failed.append((task.arm, task.seed))
            kind = "failed" if outcome.error else "done"
            tell(Event(kind, label=task.label, note=outcome.error, seconds=outcome.seconds))
        return _proof(store, time.perf_counter() - start, resumed, failed)


def load_proof(root: Path, study: Study, preset: str) -> Proof:
    """Judge what is already stored below `root`, measuring nothing.

    Raises:
        InputError: see `hexad.core.store.open_store`.
    """
    with open_store(root, study, preset) as store:
        return _proof(store)


def _proof(
    store: Store, seconds: float = 0.0, resumed: int = 0, failed: Sequence[tuple[str, int]] = ()
) -> Proof:
    records, errors = store.records, store.errors()
    return Proof(
        study=store.study,
        preset=store.preset,
        records=records,
        judgements=judge_all(store.study, records, store.preset, errors),
        errors=errors,
        folder=store.folder,
        results=Results(records, store.config, {key: store.trial_folder(*key) for key in store.finished}),
        seconds=seconds,
        resumed=resumed,
        failed=list(failed),
        warnings=store.warnings,
    )
