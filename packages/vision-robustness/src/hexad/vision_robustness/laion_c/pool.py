"""Jobs in worker processes that end whatever becomes of them or of their parent.

The pools of the standard library share locks between processes and threads, and one that an interrupt leaves
held makes their end wait for ever. Here nothing is shared. Each process reads jobs from its standard input
and writes answers to its standard output. When its input is closed, by the parent or by the parent's death,
it finishes the file in hand and ends. It can be killed at any time.
"""

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import IO, Any, Self

from PIL import Image

from hexad.core.errors import HexadError
from hexad.vision_robustness.laion_c.workers import Done, Job, Worker

AHEAD = 2
"""Jobs that a process holds, so that it need not wait for its parent. Each is reported soon after it ends."""
POLL = 0.1
"""Seconds after which the parent looks whether it was interrupted."""


class Runner:
    """Runs jobs here (`count` of 1), or in `count` processes."""

    def __init__(self, worker: Worker, count: int) -> None:
        self.worker = worker
        self._count = count if count > 1 else 0
        self._processes: list[_Process] = []
        self._answers: queue.SimpleQueue[tuple[_Process, Any]] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        for _ in range(self._count):
            self._processes.append(_Process(self.worker, self._answers))
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._processes:
            process.kill()

    def run(self, jobs: Iterator[Job], interrupted: Callable[[], bool]) -> Iterator[Done]:
        """Do the jobs, in whatever order they end, until there is an interrupt.

        What is then in hand comes to the end of its present file, and is yielded as far as it went.

        Raises:
            HexadError: a process died. What a worker raises is raised here.
        """
        for job in jobs:
            if not job.cells:
                yield Done(job, {}, False)
            elif not self._processes:
                yield self.worker(job, interrupted)
            else:
                while not interrupted() and self._idlest().pending >= AHEAD:
                    yield from self._finished()
                self._idlest().send(job)
            if interrupted():
                break
        while not interrupted() and any(process.pending for process in self._processes):
            yield from self._finished()
        yield from self.stop()

    def stop(self) -> Iterator[Done]:
        """Let every process end after the file in hand, and yield what they report until then."""
        for process in self._processes:
            process.close()
        while not all(process.ended for process in self._processes):
            for answer in self._received():
                if isinstance(answer, Done):
                    yield answer

    def _idlest(self) -> "_Process":
        return min(self._processes, key=lambda process: process.pending)

    def _finished(self) -> Iterator[Done]:
        for answer in self._received():
            if answer is None:
                raise HexadError(
                    "a worker process died (out of memory?); what is finished is kept, and the same command "
                    "with fewer --jobs goes on from there"
                )
            if isinstance(answer, Exception):
                raise answer
            yield answer

    def _received(self) -> Iterator[Done | Exception | None]:
        """The next answer, if there is one soon; None is the end of a process."""
        with contextlib.suppress(queue.Empty):
            process, answer = self._answers.get(timeout=POLL)
            if answer is None:
                process.ended = True
            else:
                process.pending -= 1
            yield answer


class _Process:
    """A worker process, and a thread that puts its answers into a queue: at its end None."""

    def __init__(self, worker: Worker, answers: "queue.SimpleQueue[tuple[_Process, Any]]") -> None:
        self.pending = 0
        self.ended = False
        # The modules are looked for where this process found them.
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
        self._popen = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A terminal sends Ctrl-C to its foreground group. The parent alone decides what becomes of it.
            process_group=0,
        )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._jobs: IO[bytes] = self._popen.stdin
        self._listener = threading.Thread(
            target=self._listen, args=(self._popen.stdout, answers), daemon=True
        )
        self._listener.start()
        self._write(worker)

    def send(self, job: Job) -> None:
        """Give it one more job."""
        self.pending += 1
        self._write(job)

    def close(self) -> None:
        """Let it end after the file in hand."""
        with contextlib.suppress(OSError):
            self._jobs.close()

    def kill(self) -> None:
        """End it now; one that has nothing in hand loses nothing."""
        self._popen.kill()
        self._popen.wait()
        self.close()
        self._listener.join()

    def _write(self, value: object) -> None:
        # Where it has died the listener finds out, and the parent says so.
        with contextlib.suppress(OSError):
            pickle.dump(value, self._jobs)
            self._jobs.flush()

    def _listen(self, stream: IO[bytes], answers: "queue.SimpleQueue[tuple[_Process, Any]]") -> None:
        with stream:
            for answer in _unpickled(stream):
                answers.put((self, answer))
        answers.put((self, None))


def serve() -> None:
    """What a worker process does: read a `Worker` and jobs from its input, write answers to its output."""
    # Where there are no groups of processes Ctrl-C arrives here too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    # What a library may print must not come between the answers.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    received = _unpickled(sys.stdin.buffer)
    worker: Worker | None = next(received, None)
    jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
    closed = threading.Event()

    def listen() -> None:
        for job in received:
            jobs.put(job)
        closed.set()
        jobs.put(None)

    threading.Thread(target=listen, daemon=True).start()
    while worker is not None and (job := jobs.get()) is not None and not closed.is_set():
        try:
            answer: Done | Exception = worker(job, closed.is_set)
        except Exception as error:
            # The parent raises it, and pickling drops the traceback.
            error.add_note(traceback.format_exc())
            answer = error
        # A parent that was killed reads no answers.
        with contextlib.suppress(BrokenPipeError):
            pickle.dump(answer, out)
            out.flush()
    os._exit(0)


def _unpickled(stream: IO[bytes]) -> Iterator[Any]:
    """The objects in a stream until it ends, be it in the middle of one."""
    with contextlib.suppress(EOFError, pickle.UnpicklingError, OSError):
        while True:
            yield pickle.load(stream)
