"""Which of the five thousand handwritten digits of `hexad.core.data` are trained on and tested."""

import functools

import numpy as np
from jaxtyping import Int

from hexad.core.data import load_handwritten_digits as load_digits


@functools.lru_cache(maxsize=2)
def split_digits(
    seed: int, train: int, test: int
) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " test"]]:
    """Places of digits to train and to test on, without overlap, drawn by the seed."""
    order = np.random.default_rng(seed).permutation(len(load_digits()[1]))
    return order[:train], order[train : train + test]
