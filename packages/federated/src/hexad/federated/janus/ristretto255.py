"""ristretto255 (RFC 9496) by libsodium, through rbcl: every multiplication takes the same time.

A sum of many products is made one product at a time, without buckets, whose sizes would depend on secrets.
That is many times slower than secp256k1's buckets: 15 times for 1000 numbers, and more for longer vectors.
"""

import hashlib
from collections.abc import Sequence
from functools import reduce
from importlib.metadata import version

import numpy as np
import rbcl
from jaxtyping import UInt8, UInt64

from hexad.federated.janus.errors import ProtocolError
from hexad.federated.janus.groups import HASH_DOMAIN, check_elements


class Ristretto255Group:
    """The group of RFC 9496: elements are 32 bytes, the identity 32 zero bytes."""

    name = "ristretto255"
    order = 2**252 + 27742317777372353535851937790883648493
    element_size = 32
    identity = bytes(32)
    row_size = 32

    def __init__(self) -> None:
        self.library = f"rbcl {version('rbcl')}"

    def decode(self, data: bytes) -> bytes:
        """See `Group.decode`."""
        if len(data) != 32 or not rbcl.crypto_core_ristretto255_is_valid_point(data):
            raise ProtocolError(
                "point", f"{data.hex()} is no point of ristretto255; the message is malformed"
            )
        return data

    def base_mul(self, scalar: int) -> bytes:
        """See `Group.base_mul`."""
        data = (scalar % self.order).to_bytes(32, "little")
        return rbcl.crypto_scalarmult_ristretto255_base_allow_scalar_zero(data)

    def mul(self, element: bytes, scalar: int) -> bytes:
        """See `Group.mul`."""
        data = (scalar % self.order).to_bytes(32, "little")
        return rbcl.crypto_scalarmult_ristretto255_allow_scalar_zero(data, self.decode(element))

    def combine(self, elements: Sequence[bytes]) -> bytes:
        """See `Group.combine`."""
        check_elements(elements)
        return reduce(rbcl.crypto_core_ristretto255_add, map(self.decode, elements))

    def neg(self, element: bytes) -> bytes:
        """See `Group.neg`."""
        return rbcl.crypto_core_ristretto255_sub(self.identity, self.decode(element))

    def hash_to_group(self, message: bytes) -> bytes:
        """RFC 9496's one-way map of SHA-512(domain || message)."""
        return rbcl.crypto_core_ristretto255_from_hash(hashlib.sha512(HASH_DOMAIN + message).digest())

    def hash_table(self, prefix: bytes, start: int, count: int) -> UInt8[np.ndarray, "count 32"]:
        """See `Group.hash_table`."""
        points = b"".join(
            self.hash_to_group(prefix + index.to_bytes(8, "big")) for index in range(start, start + count)
        )
        return np.frombuffer(points, np.uint8).reshape(count, 32)

    def table_element(self, row: UInt8[np.ndarray, " 32"]) -> bytes:
        """See `Group.table_element`."""
        return row.tobytes()

    def multiply_sum(
        self, table: UInt8[np.ndarray, "n 32"], exponents: UInt64[np.ndarray, " n"], threads: int = 1
    ) -> bytes:
        """See `Group.multiply_sum`; rbcl holds the interpreter, so `threads` changes nothing."""
        total = self.identity
        for row, exponent in zip(table, exponents.tolist(), strict=True):
            product = rbcl.crypto_scalarmult_ristretto255_allow_scalar_zero(
                exponent.to_bytes(32, "little"), row.tobytes()
            )
            total = rbcl.crypto_core_ristretto255_add(total, product)
        return total
