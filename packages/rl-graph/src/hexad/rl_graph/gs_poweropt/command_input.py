"""What the command line is given: a function by its name, a vector, bounds."""

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from hexad.core.errors import InputError
from hexad.core.validation import check_file


def function_of(spec: str) -> Callable[..., Any]:
    """The function `package.module:name`, of an installed package or of a module in this folder.

    Raises:
        InputError: it is written otherwise, or cannot be imported.
    """
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", spec):
        hint = f"; did you mean {Path(spec).stem}:NAME?" if ".py" in spec else ""
        raise InputError(f"objective {spec!r} must be written module:function, such as model:loss{hint}")
    module_name, _, name = spec.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (Exception, SystemExit) as error:
        plain = isinstance(error, (ImportError, AttributeError))
        cause = str(error) if plain else f"{type(error).__name__}: {error}"
        raise InputError(f"objective {spec} cannot be imported ({' '.join(cause.split())})") from None
    if not callable(found):
        raise InputError(f"objective {spec} is {type(found).__name__}; it must be a function")
    return found


def vector_of(text: str, what: str) -> Float[np.ndarray, " d"]:
    """Numbers by commas, or those of a .npy or text file.

    Raises:
        InputError: it is neither.
    """
    try:
        return np.array([float(part) for part in text.split(",")])
    except ValueError:
        pass
    if not Path(text).suffix:
        raise InputError(f"{what} {text!r} must be numbers by commas, such as 1,-2.5, or a .npy or text file")
    path = check_file(text, what)
    try:
        if path.suffix == ".npy":
            vector = np.load(path).astype(np.float64)
        else:
            comma = "," if "," in path.read_text() else None
            vector = np.loadtxt(path, delimiter=comma, ndmin=1).astype(np.float64)
    except (ValueError, TypeError, EOFError, OSError) as error:
        raise InputError(f"{what} {path} holds no vector of numbers ({error})") from None
    if vector.ndim != 1 or not vector.size:
        raise InputError(f"{what} {path} holds an array of shape {vector.shape}; give a vector")
    return vector


def as_flags(message: str) -> str:
    """A message of the library in the words of the command: nan_policy='worst' is --nan-policy worst."""
    return re.sub(
        r"\b([a-z_]+)='?([\w.+-]+)'?", lambda found: f"--{found[1].replace('_', '-')} {found[2]}", message
    )


def bounds_of(text: str, d: int) -> list[tuple[float | None, float | None]] | None:
    """`low:high` for all variables, or one by commas for each; a side left out has no bound.

    Raises:
        InputError: it is written otherwise.
    """
    if not text:
        return None
    try:
        pairs = [
            tuple(float(side) if side.strip() else None for side in part.split(":"))
            for part in text.split(",")
        ]
    except ValueError:
        pairs = [()]
    if any(len(pair) != 2 for pair in pairs):
        raise InputError(
            f"--bounds {text!r} must be low:high, such as -5:5, or one by commas for each variable"
        )
    return [(pair[0], pair[1]) for pair in (pairs * d if len(pairs) == 1 else pairs)]
