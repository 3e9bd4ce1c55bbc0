"""A model as one vector: its floating-point arrays, one behind the other."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Shaped

from hexad.core.errors import InputError

Arrays = Sequence[Shaped[np.ndarray, "..."]]


def flat_length(arrays: Arrays) -> int:
    """How many numbers `flatten` gives; arrays of whole numbers do not count."""
    return sum(array.size for array in arrays if array.dtype.kind == "f")


def flatten(arrays: Arrays) -> Float[np.ndarray, " length"]:
    """The numbers of all floating-point arrays in float64.

    Raises:
        InputError: there are none.
    """
    parts = [np.asarray(array, np.float64).reshape(-1) for array in arrays if array.dtype.kind == "f"]
    if not parts:
        raise InputError("the model has no floating-point arrays; there is nothing to sum")
    return np.concatenate(parts)


def difference(new: Arrays, old: Arrays) -> Float[np.ndarray, " length"]:
    """new - old as a vector.

    Raises:
        InputError: they have unlike arrays.
    """
    shapes = [[(array.shape, array.dtype.kind) for array in arrays] for arrays in (new, old)]
    if shapes[0] != shapes[1]:
        raise InputError(
            f"the trained model's {len(new)} arrays are unlike the {len(old)} it was given; keep them"
        )
    return flatten(new) - flatten(old)


def add_to(arrays: Arrays, update: Float[np.ndarray, " length"]) -> list[Shaped[np.ndarray, "..."]]:
    """The model moved by an update, in its own types; arrays of whole numbers stay.

    Raises:
        InputError: the update has another length.
    """
    if update.shape != (flat_length(arrays),):
        raise InputError(f"an update of {update.size} numbers cannot move a model of {flat_length(arrays)}")
    moved, place = [], 0
    for array in arrays:
        if array.dtype.kind != "f":
            moved.append(array)
            continue
        part = update[place : place + array.size].reshape(array.shape)
        moved.append((array.astype(np.float64) + part).astype(array.dtype))
        place += array.size
    return moved
