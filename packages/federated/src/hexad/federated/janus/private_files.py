"""Files of one party's own: written whole or not at all, readable by their owner alone; locked folders."""

import contextlib
import fcntl
import os
import secrets
from pathlib import Path
from typing import IO

from hexad.core.errors import InputError
from hexad.core.files import writable_folder
from hexad.core.validation import check_path


def write_private(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file that was never readable by others, over an older one, whole or not at all."""
    target = Path(path)
    temporary = target.with_name(f".{target.stem[:40]}-{secrets.token_hex(6)}{target.suffix}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def private_folder(path: str | os.PathLike[str], what: str) -> Path:
    """A folder that can be written; where it is made, its owner alone may enter.

    Raises:
        InputError: see `writable_folder`.
    """
    with contextlib.suppress(OSError):  # which `writable_folder` tells
        check_path(path, what).mkdir(mode=0o700, parents=True)
    return writable_folder(path, what)


def lock_folder(path: str | os.PathLike[str], what: str) -> tuple[Path, IO[str]]:
    """A folder that one process at a time has, until it closes the file that comes with it.

    Raises:
        InputError: it is in use, or cannot be written.
    """
    folder = private_folder(path, what)
    (folder / "lock").touch(mode=0o600)
    lock = (folder / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise InputError(f"{folder} is in use by another process; one party has one folder") from None
    return folder, lock
