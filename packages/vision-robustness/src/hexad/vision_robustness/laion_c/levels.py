"""What all distortions ask of their caller: a level from 1 to 5, and a source of randomness."""

import operator

import numpy as np

from hexad.core.errors import InputError

LEVELS = (1, 2, 3, 4, 5)

Seed = np.random.Generator | int | None
"""A generator (advanced by the call), a seed, or None for a draw that nobody can repeat."""


def level_index(severity: int) -> int:
    """The place 0 to 4 of a severity 1 to 5, else `InputError`."""
    try:
        level = operator.index(severity)
    except TypeError:
        level = 0
    if isinstance(severity, (bool, np.bool_)) or level not in LEVELS:
        raise InputError(f"severity is {severity!r}; it must be an integer from 1 to 5")
    return level - 1


def generator(rng: Seed) -> np.random.Generator:
    """The generator behind `rng`."""
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError) as error:
        raise InputError(f"rng is {rng!r}; give a numpy Generator, a seed >= 0, or None ({error})") from None
