"""Checks at the door, with one wording for the same mistake everywhere."""

import difflib
import math
import os
from collections.abc import Iterable
from pathlib import Path

from hexad.core.errors import InputError


def near_miss(name: str, known: Iterable[str]) -> str:
    """A hint such as "did you mean 'quest'?", or the list of what is known."""
    names = sorted(known)
    close = difflib.get_close_matches(name.lower().replace("_", "-"), names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    if not names:
        return "none is known"
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return f"known: {shown}"


def check_choice(what: str, value: str, known: Iterable[str], where: str = "") -> str:
    """Return `value` if it is one of `known`, else raise `InputError` with a near-miss hint.

    `where` completes the message: `unknown <what> '<value>' <where>; did you mean ...?`
    """
    names = list(known)
    if not isinstance(value, str) or value not in names:
        hint = near_miss(str(value), names)
        raise InputError(f"unknown {what} {value!r}{' ' + where if where else ''}; {hint}")
    return value


def check_range(
    what: str,
    value: float,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    low_open: bool = False,
    high_open: bool = False,
) -> float:
    """Return `value` if it is a finite number in the interval, else raise `InputError`."""
    open_low, open_high = low_open or math.isinf(low), high_open or math.isinf(high)
    bounds = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
    try:
        good = math.isfinite(value)
    except OverflowError:  # an int beyond all floats
        good = False
    except TypeError:
        good = None
    if good is None or isinstance(value, bool):
        raise InputError(f"{what} must be a number in {bounds}, not {value!r}")
    good = good and (value > low if low_open else value >= low)
    good = good and (value < high if high_open else value <= high)
    if not good:
        raise InputError(f"{what} is {value!r}; it must lie in {bounds}")
    return value


def check_flag(what: str, value: bool) -> bool:
    """Return `value` if it is True or False, else raise `InputError`: neither 1 nor "yes" is meant."""
    if not isinstance(value, bool):
        raise InputError(f"{what} is {value!r}; it must be True or False")
    return value


def check_count(what: str, value: int, low: int = 1) -> int:
    """Return `value` if it is an int of at least `low`, else raise `InputError`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise InputError(f"{what} is {value!r}; it must be a whole number of at least {low}")
    return value


def check_path(path: str | os.PathLike[str], what: str = "path") -> Path:
    """Return `path` as a Path if it is one or a string, else raise `InputError`."""
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"{what} must be a path, not {path!r}")
    return Path(path)


def check_file(path: str | os.PathLike[str], what: str = "file") -> Path:
    """Return the path of an existing, readable file, else raise `InputError`."""
    file = check_path(path, what)
    if file.is_dir():
        raise InputError(f"{what} {file} is a folder; name a file")
    if not file.exists():
        siblings = [p.name for p in file.parent.iterdir()] if file.parent.is_dir() else []
        close = difflib.get_close_matches(file.name, siblings, n=1, cutoff=0.7)
        hint = f"; did you mean {file.parent / close[0]}?" if close else ""
        raise InputError(f"{what} {file} does not exist{hint}")
    try:
        with file.open("rb"):
            return file
    except OSError as error:
        raise InputError(f"{what} {file} cannot be read ({error.strerror})") from None


def check_folder(path: str | os.PathLike[str], what: str = "folder") -> Path:
    """Return the path of an existing folder, else raise `InputError`."""
    folder = check_path(path, what)
    if not folder.exists():
        raise InputError(f"{what} {folder} does not exist")
    if not folder.is_dir():
        raise InputError(f"{what} {folder} is a file; name a folder")
    return folder
