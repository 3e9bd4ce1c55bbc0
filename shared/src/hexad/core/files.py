"""Files written whole or not at all."""

import json
import os
import re
import secrets
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from hexad.core.errors import InputError
from hexad.core.validation import check_path

TEMPORARY = re.compile(r"(\..*-)[0-9a-f]{12}(\.\w+|)")
"""Names of what `atomic_path` leaves where it is killed: a prefix made of the stem, and the suffix."""


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Generator[Path]:
    """Yield a temporary path beside `path`, moved onto it when the block ends well.

    A crash, a full disk or Ctrl-C leaves the old file (or none), never half of a new one. Use it for
    libraries that take a path; the temporary name keeps the suffix, by which many of them choose a format.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.stem[:40]}-{secrets.token_hex(6)}{target.suffix}")
    # Not mkstemp, whose files are private: a result should have the rights that any new file has.
    os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))
    rights = temporary.stat().st_mode
    try:
        yield temporary
        temporary.chmod(rights)  # safetensors puts a private file in its place
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_open(path: str | os.PathLike[str], mode: str = "w") -> Generator[IO[Any]]:
    """Open a file for writing (`"w"` or `"wb"`) that replaces `path` only when the block ends well."""
    with (
        atomic_path(path) as temporary,
        temporary.open(mode, encoding=None if "b" in mode else "utf-8") as file,
    ):
        yield file


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    with atomic_open(path) as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")


def writable_folder(path: str | os.PathLike[str], what: str = "folder") -> Path:
    """Make the folder where it is missing and prove that a file can be written in it.

    Raises:
        InputError: it is a file, or cannot be made or written.
    """
    folder = check_path(path, what)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except FileExistsError:
        raise InputError(f"{what} {folder} is a file; name a folder") from None
    except OSError as error:
        raise InputError(
            f"{what} {folder} cannot be written ({error.strerror or error}); name one that can"
        ) from None


@contextmanager
def alone_in(path: str | os.PathLike[str], what: str = "folder") -> Generator[Path]:
    """Make the folder where it is missing, and keep other runs out of it until the block ends.

    It is held by a lock on the file `.lock` in it, which the system lets go when a process dies.

    Raises:
        InputError: it cannot be written, or another run writes to it.
    """
    folder = writable_folder(path, what)
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(f"another run is writing to {folder}; wait for it or name another folder") from None
    try:
        yield folder
    finally:
        lock.release()


def writable_file(path: str | os.PathLike[str], what: str = "output") -> Path:
    """The path of a file to write, its folder made where it is missing and proved to be writable.

    Raises:
        InputError: it is no path, a folder, or in a folder that cannot be written.
    """
    file = check_path(path, what)
    if file.is_dir():
        raise InputError(f"{what} {file} is a folder; name a file")
    writable_folder(file.parent, f"folder of {what}")
    return file


def cache_folder(part: str) -> Path:
    """Where what can be made again is kept: `$HEXAD_CACHE/<part>`, else a folder of the user's cache.

    That is `$XDG_CACHE_HOME/hexad/<part>`, else `~/.cache/hexad/<part>`. It is not made here.

    Raises:
        InputError: nothing says where the user's home is.
    """
    own, cache = os.environ.get("HEXAD_CACHE"), os.environ.get("XDG_CACHE_HOME")
    try:
        if own:
            # Absolute, so that nothing is loaded out of whatever folder a process happens to stand in.
            return Path(own).expanduser().absolute() / part
        # A relative one is to be ignored (XDG base directory specification).
        home = Path(cache) if cache and os.path.isabs(cache) else Path("~").expanduser() / ".cache"
    except RuntimeError:
        raise InputError(
            f"there is no home folder to keep {part} in; set HEXAD_CACHE to a private folder"
        ) from None
    return home / "hexad" / part
