"""Where trials run: in this process, in a pool of processes, or on a Ray cluster, behind one function.

    for task, outcome in run_tasks(tasks, engine="local", workers=2): ...

Outcomes arrive as they finish. An arm that raises, or kills its process, gives an `Outcome` with its error;
the others go on. Trials keep files (checkpoints, arrays for the figures) in their folders and nothing brings
those back, so a Ray cluster of several machines must share the file system of the results folder.
"""

import importlib.util
import logging
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Literal

from hexad.core.environment import cores, environment
from hexad.core.errors import HexadError, InputError, MissingExtraError, TrialError
from hexad.core.studies import Measurement, Outcome, Study, Task, Trial
from hexad.core.validation import check_choice

EngineName = Literal["local", "ray"]
ENGINES: tuple[EngineName, ...] = ("local", "ray")

Progress = Callable[[Task, float, str], None]


def _checked(study: Study, arm: str, measurement: Measurement) -> Measurement:
    study.metric(measurement.metric)
    if not math.isfinite(measurement.value):
        where = f"{measurement.metric} {measurement.case}".strip()
        raise TrialError(f"arm {arm!r} measured {measurement.value} as {where}; a record must be finite")
    return measurement


def run_task(task: Task, progress: Progress | None = None) -> Outcome:
    """Run one trial here and now; an exception in it becomes the outcome's error."""
    start = time.perf_counter()
    try:
        arm = task.study.arm(task.arm)
        task.folder.mkdir(parents=True, exist_ok=True)
        trial = Trial(task.arm, task.seed, task.config, task.folder)
        if progress is not None:
            trial = Trial(
                *(task.arm, task.seed, task.config, task.folder),
                progress=lambda fraction, note="": progress(task, fraction, note),
            )
        measured = tuple(_checked(task.study, arm.name, item) for item in arm.run(trial))
        if not measured:
            raise TrialError(f"arm {arm.name!r} measured nothing")
        (what, count), *_ = Counter((item.metric, item.case) for item in measured).most_common(1)
        if count > 1:
            raise TrialError(f"arm {arm.name!r} measured {' '.join(what).strip()} {count} times")
    except HexadError as error:
        return Outcome(error=str(error), traceback=f"{traceback.format_exc()}")
    except Exception as error:
        reason = str(error).strip().splitlines()
        message = f"{type(error).__name__}: {reason[0] if reason else ''}"
        return Outcome(error=message, traceback=traceback.format_exc())
    return Outcome(measured, time.perf_counter() - start, environment=environment())


def check_engine(engine: str, workers: int) -> None:
    """Refuse an unknown engine or fewer than one worker (`InputError`), or a missing Ray."""
    check_choice("engine", engine, ENGINES)
    if workers < 1:
        raise InputError(f"workers is {workers}; it must be at least 1")
    if engine == "ray" and importlib.util.find_spec("ray") is None:
        raise MissingExtraError(
            'the ray engine needs Ray, which is not installed; run: pip install "hexad-core[ray]"'
        )


def run_tasks(
    tasks: Sequence[Task],
    *,
    engine: EngineName = "local",
    workers: int = 1,
    progress: Progress | None = None,
) -> Iterator[tuple[Task, Outcome]]:
    """Run the tasks and yield each with its outcome as it finishes.

    Args:
        tasks: what to run.
        engine: `"local"` for this machine, `"ray"` for the cluster that RAY_ADDRESS names, or a local one.
        workers: processes (local: 1 runs in this very process) or concurrent Ray tasks.
        progress: called as `progress(task, fraction, note)`; only trials in this process report it.

    Raises:
        InputError: unknown engine, or fewer than one worker.
        MissingExtraError: Ray is not installed.
    """
    check_engine(engine, workers)
    if engine == "ray":
        yield from _run_on_ray(tasks, workers)
    elif workers == 1:
        for task in tasks:
            if progress is not None:
                progress(task, 0.0, "")
            yield task, run_task(task, progress)
    else:
        yield from _run_in_pool(tasks, workers)


@contextmanager
def _threads_per_worker(workers: int) -> Generator[dict[str, str]]:
    """Set, while processes are started, how many threads each may use, so that they share the cores."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    wanted = dict.fromkeys(names, str(max(1, cores() // workers)))
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(wanted)
    try:
        yield wanted
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _tie_to_parent() -> None:
    """Leave Ctrl-C to the parent, which stops the pool, and end when it ends, even by kill -9.

    A worker that outlived its parent would write into the trial's folder beside the run that resumes it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@contextmanager
def _pool(workers: int) -> Generator[ProcessPoolExecutor]:
    # Spawned, not forked: torch's thread pools and open files do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_tie_to_parent)
    try:
        yield pool
    finally:
        processes = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()


def _run_in_pool(tasks: Sequence[Task], workers: int) -> Iterator[tuple[Task, Outcome]]:
    waiting = deque(tasks)
    with _threads_per_worker(workers):
        while waiting:
            # A process that dies takes its whole pool along. Which of the trials it was shows when each of
            # those that ran then runs alone; the others go on in a new pool.
            for task in (yield from _run_until_one_dies(waiting, workers)):
                if (yield from _run_until_one_dies(deque([task]), 1)):
                    yield task, Outcome(error="its process died (out of memory, or killed)")


def _run_until_one_dies(
    waiting: deque[Task], workers: int
) -> Generator[tuple[Task, Outcome], None, list[Task]]:
    """Run what is waiting; return the tasks that were running when a process died, if one did."""
    running: dict[Future[Outcome], Task] = {}
    with _pool(workers) as pool:
        while waiting or running:
            while waiting and len(running) < workers:
                try:
                    running[pool.submit(run_task, waiting[0])] = waiting[0]
                except BrokenProcessPool:
                    return [*running.values()] or [waiting.popleft()]
                waiting.popleft()
            # With a timeout: Polars installs handlers that restart an untimed wait, deaf to Ctrl-C.
            done, _ = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
            lost = []
            for future in done:
                task = running.pop(future)
                try:
                    outcome = future.result()
                except BrokenProcessPool:
                    lost.append(task)
                    continue
                except Exception as error:
                    outcome = Outcome(error=f"{type(error).__name__}: {error}")
                yield task, outcome
            if lost:
                return [*lost, *running.values()]
    return []


def _run_on_ray(tasks: Sequence[Task], workers: int) -> Iterator[tuple[Task, Outcome]]:
    # Ray would otherwise rebuild the environment of `uv run` on every worker, from the network.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    started = not ray.is_initialized()
    with _threads_per_worker(workers) as threads:
        if started:
            address = os.environ.get("RAY_ADDRESS")
            # Workers on this machine see the modules that this process sees (a study beside a script).
            paths = {} if address else {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": threads | paths},
                num_cpus=None if address else workers,
                include_dashboard=None if address else False,
            )
        try:
            remote = ray.remote(num_cpus=1, max_retries=1)(run_task)
            waiting = list(tasks)
            pending: dict[object, Task] = {}
            while waiting or pending:
                while waiting and len(pending) < workers:
                    task = waiting.pop(0)
                    pending[remote.remote(task)] = task
                (done,), _ = ray.wait(list(pending), num_returns=1)
                task = pending.pop(done)
                try:
                    outcome = ray.get(done)
                except Exception as error:
                    # Ray's own message is a traceback; its last line says what happened.
                    last = (str(error).strip().splitlines() or [""])[-1].strip()
                    outcome = Outcome(error=f"{type(error).__name__}: {last}", traceback=str(error))
                yield task, outcome
        finally:
            if started:
                ray.shutdown()
