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
    if not _raises_here():
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

    Where Ctrl-C is ignored or has another handler, SIGTERM stays what it was.

    Yields:
        whether there was a SIGTERM.
    """
    if not _raises_here():
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


def _raises_here() -> bool:
    """Whether Ctrl-C would raise KeyboardInterrupt in this thread."""
    main = threading.current_thread() is threading.main_thread()
    return main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
