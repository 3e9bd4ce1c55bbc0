"""What a search is given: its start, the sizes of its variables, its random numbers."""

from typing import Any

import numpy as np
from jaxtyping import Float

from hexad.core.errors import InputError

AnyRng = int | np.random.Generator | np.random.SeedSequence | None


def point_of(x: Float[np.ndarray, " d"]) -> str:
    """A point in an error's one line, its middle left out where it is long."""
    text = np.array2string(x, threshold=8, edgeitems=3, precision=6, separator=", ", max_line_width=10_000)
    return " ".join(text.split())


def vector_of(x: Any, what: str = "x0") -> Float[np.ndarray, " d"]:
    """x as a vector of its own.

    Raises:
        InputError: it is not one-dimensional, empty, or holds no finite numbers.
    """
    try:
        vector = np.array(x, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{what} must be a vector of numbers, not {type(x).__name__}") from None
    if vector.ndim != 1 or not vector.size:
        raise InputError(f"{what} has the shape {vector.shape}; give a vector of one dimension")
    if not np.isfinite(vector).all():
        place = int(np.argmin(np.isfinite(vector)))
        raise InputError(f"{what}[{place}] is {vector[place]}; all of {what} must be finite")
    return vector


def array_of(values: Any) -> np.ndarray:
    """What fun gave as an array: torch's without their gradients, masked ones with NaN for what is masked.

    What NumPy makes no array of comes as one object, whose kind is refused like others.
    """
    if hasattr(values, "detach") and hasattr(values, "is_floating_point"):
        values = values.detach().cpu()
        if values.is_floating_point():  # NumPy has no bfloat16
            values = values.double()
    if isinstance(values, np.ma.MaskedArray) and values.dtype.kind in "fiub":
        return np.ma.filled(values.astype(np.float64), np.nan)
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError):
        return np.array(None)


def x_scale_of(x_scale: Any, x0: Float[np.ndarray, " d"]) -> Float[np.ndarray, "..."]:
    """The size of all variables, (), or of each, (d,).

    Raises:
        InputError: it is neither, or not finite and positive.
    """
    try:
        sizes = np.array(x_scale, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"x_scale must be a number or {len(x0)} of them, not {x_scale!r}") from None
    if sizes.shape not in ((), x0.shape):
        raise InputError(f"x_scale has the shape {sizes.shape}; give one number or {len(x0)}, one a variable")
    if not (np.isfinite(sizes) & (sizes > 0)).all():
        raise InputError("x_scale must be finite and above 0 in all variables")
    return sizes


def generator_of(rng: AnyRng) -> np.random.Generator:
    """A generator from a seed, as `numpy.random.default_rng` makes it, or an `InputError`."""
    try:
        if isinstance(rng, bool):
            raise TypeError("a flag is no seed")
        return np.random.default_rng(rng)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"rng is {rng!r}; give a seed of at least 0 or a numpy Generator ({error})"
        ) from None
