"""Pedersen commitments of vectors: the paper's Separable Homomorphic Commitment (SHC).

c = x_1 g_1 + ... + x_d g_d + r h, written additively. It hides x perfectly, binds as long as discrete
logarithms are hard, and commitments add: commit(x, r) + commit(y, s) = commit(x + y, r + s). The paper
commits to each number by itself, which is `Pedersen(group, 1)`; a vector takes one element here.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Integer, UInt64

from hexad.core.errors import InputError
from hexad.core.validation import check_count
from hexad.federated.janus.generators import LABEL, blinding_generator, generators
from hexad.federated.janus.groups import Group


def _check_vector(m: Integer[np.ndarray, " dim"] | Sequence[int], dim: int) -> UInt64[np.ndarray, " dim"]:
    # NumPy would make floats of a list with numbers above and below 2^63.
    vector = m if isinstance(m, np.ndarray) else np.array(m, object)
    if vector.shape != (dim,) or (vector.dtype.kind not in "iu" and {type(x) for x in vector} != {int}):
        raise InputError(
            f"a vector of {dim} whole numbers is committed to, not {vector.dtype} {vector.shape}"
        )
    if not 0 <= int(vector.min()) <= int(vector.max()) < 1 << 64:
        raise InputError(
            f"committed numbers lie in [{vector.min()}, {vector.max()}]; they must lie in [0, 2^64)"
        )
    return vector.astype(np.uint64)


class Pedersen:
    """Commitments to vectors of `dim` whole numbers in [0, 2^64).

    Args:
        group: of prime order.
        dim: the length of a vector, at least 1.
        label: the generators' public label; all parties use the same.
        threads: of the sum of many products.

    Raises:
        InputError: dim is none.
    """

    def __init__(self, group: Group, dim: int, label: str = LABEL, threads: int = 1) -> None:
        self.group = group
        self.dim = check_count("dim", dim)
        self.threads = check_count("threads", threads)
        self._table = generators(group, label, dim)
        self.h = blinding_generator(group, label)

    def generator(self, j: int) -> bytes:
        """g_j, counted from 0."""
        return self.group.table_element(self._table[j])

    def message_part(self, m: Integer[np.ndarray, " dim"] | Sequence[int]) -> bytes:
        """m_1 g_1 + ... + m_d g_d; the identity for zeros."""
        vector = _check_vector(m, self.dim)
        return self.group.multiply_sum(self._table, vector, self.threads)

    def commit(self, m: Integer[np.ndarray, " dim"] | Sequence[int], r: int) -> bytes:
        """The commitment to `m` with the randomness `r`, which is uniform below the group's order."""
        return self.group.combine(self.separate(m, r))

    def separate(self, m: Integer[np.ndarray, " dim"] | Sequence[int], r: int) -> tuple[bytes, bytes]:
        """The parts of a commitment: (c_m, c_r), of the message and of the randomness."""
        return self.message_part(m), self.group.mul(self.h, r)

    def extract(self, c: bytes, c_r: bytes) -> bytes:
        """c_m of a commitment and its c_r."""
        return self.group.combine([c, self.group.neg(c_r)])

    def combine(self, commitments: Sequence[bytes]) -> bytes:
        """The commitment to the sum of what the commitments hold.

        Raises:
            InputError: there are none.
        """
        return self.group.combine(commitments)

    def open(self, c: bytes, m: Integer[np.ndarray, " dim"] | Sequence[int], r: int) -> bool:
        """Whether `c` is the commitment to `m` with `r`."""
        return self.group.decode(c) == self.commit(m, r)
