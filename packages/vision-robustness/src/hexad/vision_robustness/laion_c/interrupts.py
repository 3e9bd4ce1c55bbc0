"""Ctrl-C and SIGTERM in the middle of files and processes."""

import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

_DOUBLE = 1.0
"""Seconds within which a second Ctrl-C is the first once more, passed on by a program in between."""


@contextmanager
def put_off_interrupt() -> Generator[Callable[[], bool]]:
    """Put Ctrl-C off to the end of the block.

    An exception at any moment could come between a file and its record, or between a process and the
    variable that holds it. A second Ctrl-C, by someone who will not wait, is raised at once. Where a program
    has a handler of its own for SIGINT, and outside the main thread, nothing is put off.

    Yields:
        whether there was a Ctrl-C: the block should then come to its end.

    Raises:
        KeyboardInterrupt: at the end, if there was one.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: False
        return
    times: list[float] = []

    def note(number: int, frame: FrameType | None) -> None:
        times.append(time.monotonic())
        if times[-1] - times[0] > _DOUBLE:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(times)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if times:
        raise KeyboardInterrupt


@contextmanager
def terminate_as_interrupt() -> Generator[Callable[[], bool]]:
    """Take SIGTERM, as job schedulers send it, for a Ctrl-C, so that it ends a run as orderly.

    Yields:
        whether there was a SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    caught: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield lambda: bool(caught)
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
