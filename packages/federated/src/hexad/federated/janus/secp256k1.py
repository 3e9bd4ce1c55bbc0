"""secp256k1 by libsecp256k1, through coincurve; sums of many points by Pippenger's buckets.

coincurve's own `PublicKey.combine_keys` takes a list of Python objects. Here the same C function is called on
arrays: a table is a uint8 array of libsecp256k1's 64-byte points, and a sum is a slice of pointers into it.
Multiplication is variable in time, so somebody who can time this process may learn about its secrets.
"""

import hashlib
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from itertools import pairwise

import numpy as np
from coincurve import PublicKey
from coincurve._libsecp256k1 import ffi, lib  # ty: ignore[import-not-found]
from coincurve.context import GLOBAL_CONTEXT
from jaxtyping import Bool, UInt8, UInt64

from hexad.core.errors import HexadError
from hexad.federated.janus.errors import ProtocolError
from hexad.federated.janus.groups import HASH_DOMAIN, check_elements, scalar_to_bytes

ROW = 64
CONTEXT = GLOBAL_CONTEXT.ctx
CALL, ADD = 5.0, 0.3
"""Microseconds of a call and of an addition in it, from which the width of the windows is chosen."""


def _address(table: UInt8[np.ndarray, "n 64"]) -> int:
    return table.ctypes.data


def _sum_of(pointers: UInt64[np.ndarray, " n"], out: int) -> bool:
    """Write the sum of the points to the address `out`, none of theirs; False where it is the identity."""
    check_elements(pointers)
    return bool(
        lib.secp256k1_ec_pubkey_combine(
            CONTEXT,
            ffi.cast("secp256k1_pubkey *", out),
            ffi.cast("secp256k1_pubkey **", pointers.ctypes.data),
            len(pointers),
        )
    )


def _pointers(table: UInt8[np.ndarray, "n 64"]) -> UInt64[np.ndarray, " n"]:
    return np.uint64(_address(table)) + np.arange(len(table), dtype=np.uint64) * np.uint64(ROW)


class _Accumulator:
    """A point that may be the identity, which libsecp256k1 cannot represent."""

    def __init__(self) -> None:
        # libsecp256k1 clears the output before it reads the inputs, so the sum has a row of its own.
        self._rows = np.zeros((3, ROW), np.uint8)
        self._places = _pointers(self._rows)
        self.present = False

    def double(self) -> None:
        if self.present:
            self.add(self._rows[0])

    def add(self, row: UInt8[np.ndarray, " 64"]) -> None:
        if not self.present:
            self._rows[0], self.present = row, True
            return
        self._rows[1] = row
        self.present = _sum_of(self._places[:2], int(self._places[2]))
        self._rows[0] = self._rows[2]

    @property
    def row(self) -> UInt8[np.ndarray, " 64"]:
        return self._rows[0].copy()


def _window(n: int, bits: int) -> int:
    """The number of bits a digit should have, for the fewest microseconds."""

    def cost(width: int) -> float:
        buckets = min(n, 1 << width)
        return math.ceil(bits / width) * (n * ADD + buckets * (CALL + ADD * width / 2) + 2 * width * CALL)

    return min(range(1, min(bits, 15) + 1), key=cost)


def _buckets(
    pointers: UInt64[np.ndarray, " n"], digits: UInt64[np.ndarray, " n"], width: int
) -> tuple[UInt8[np.ndarray, "buckets 64"], Bool[np.ndarray, " buckets"]]:
    """For each value of a digit the sum of the points that have it, and whether there is one."""
    small = digits.astype(np.uint16)
    order = pointers[np.argsort(small, kind="stable")]
    counts = np.bincount(small, minlength=1 << width)
    ends = np.cumsum(counts)
    sums = np.zeros((1 << width, ROW), np.uint8)
    present = counts > 0
    present[0] = False  # zero times a point
    places = _pointers(sums)
    for digit in np.flatnonzero(present).tolist():
        end = ends[digit]
        present[digit] = _sum_of(order[end - counts[digit] : end], int(places[digit]))
    return sums, present


def _bucket_sum(table: UInt8[np.ndarray, "n 64"], exponents: UInt64[np.ndarray, " n"]) -> _Accumulator:
    """Pippenger: digits from the highest down, and in each digit one large sum for each of its bits."""
    total = _Accumulator()
    bits = int(exponents.max()).bit_length() if len(exponents) else 0
    if bits == 0:
        return total
    width = _window(len(exponents), bits)
    pointers = _pointers(table)
    spare = np.zeros((1, ROW), np.uint8)
    for shift in reversed(range(0, bits, width)):
        digits = (exponents >> np.uint64(shift)) & np.uint64((1 << width) - 1)
        sums, present = _buckets(pointers, digits, width)
        places, values = _pointers(sums), np.arange(1 << width)
        for bit in reversed(range(width)):
            total.double()
            chosen = places[present & ((values >> bit) & 1 == 1)]
            if len(chosen) and _sum_of(chosen, _address(spare)):
                total.add(spare[0])
    return total


class Secp256k1Group:
    """The group of secp256k1: order N, cofactor 1, elements in compressed SEC 1 form (33 bytes).

    The identity, for which SEC 1 has no 33 bytes, is 33 zero bytes.
    """

    name = "secp256k1"
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    element_size = 33
    identity = bytes(33)
    row_size = ROW

    def __init__(self) -> None:
        self.library = f"coincurve {version('coincurve')}"
        keys = [PublicKey.from_secret(scalar_to_bytes(k)) for k in (1, 2, 3)]
        table = np.stack([self._row(key.format()) for key in keys])
        if self.multiply_sum(table, np.array([1, 5, 7], np.uint64)) != self.base_mul(32):
            raise HexadError(f"{self.library} lays points out in another way; install coincurve 21")

    def _row(self, element: bytes) -> UInt8[np.ndarray, " 64"]:
        row = np.zeros(ROW, np.uint8)
        if not lib.secp256k1_ec_pubkey_parse(
            CONTEXT, ffi.cast("secp256k1_pubkey *", row.ctypes.data), element, len(element)
        ):
            raise ProtocolError(
                "point", f"{element.hex()} is no point of secp256k1; the message is malformed"
            )
        return row

    def decode(self, data: bytes) -> bytes:
        """See `Group.decode`."""
        if len(data) != self.element_size:
            raise ProtocolError("point", f"a point has {len(data)} bytes, not 33; the message is malformed")
        if data != self.identity:
            self._row(data)
        return data

    def base_mul(self, scalar: int) -> bytes:
        """See `Group.base_mul`; constant in time."""
        scalar %= self.order
        return PublicKey.from_secret(scalar_to_bytes(scalar)).format() if scalar else self.identity

    def mul(self, element: bytes, scalar: int) -> bytes:
        """See `Group.mul`."""
        scalar %= self.order
        if scalar == 0 or self.decode(element) == self.identity:
            return self.identity
        return PublicKey(element).multiply(scalar_to_bytes(scalar)).format()

    def combine(self, elements: Sequence[bytes]) -> bytes:
        """See `Group.combine`."""
        check_elements(elements)
        rows = [self._row(element) for element in map(self.decode, elements) if element != self.identity]
        if not rows:
            return self.identity
        out = np.zeros((1, ROW), np.uint8)
        table = np.stack(rows)
        return self.table_element(out[0]) if _sum_of(_pointers(table), _address(out)) else self.identity

    def neg(self, element: bytes) -> bytes:
        """See `Group.neg`: the other root, whose sign is the first byte."""
        if self.decode(element) == self.identity:
            return element
        return bytes([element[0] ^ 1]) + element[1:]

    def hash_to_group(self, message: bytes) -> bytes:
        """Try and increment: the first SHA-256(domain || message || counter) that is an x coordinate."""
        return self.table_element(self._hash(message))

    def _hash(self, message: bytes) -> UInt8[np.ndarray, " 64"]:
        row = np.zeros(ROW, np.uint8)
        point = ffi.cast("secp256k1_pubkey *", row.ctypes.data)
        start = hashlib.sha256(HASH_DOMAIN + message)
        for counter in range(256):
            digest = start.copy()
            digest.update(bytes([counter]))
            if lib.secp256k1_ec_pubkey_parse(CONTEXT, point, b"\x02" + digest.digest(), 33):
                return row
        raise AssertionError("256 hashes that are no x coordinate: probability 2^-256")

    def hash_table(self, prefix: bytes, start: int, count: int) -> UInt8[np.ndarray, "count 64"]:
        """See `Group.hash_table`."""
        table = np.zeros((count, ROW), np.uint8)
        for place in range(count):
            table[place] = self._hash(prefix + (start + place).to_bytes(8, "big"))
        return table

    def table_element(self, row: UInt8[np.ndarray, " 64"]) -> bytes:
        """See `Group.table_element`."""
        row = np.ascontiguousarray(row)
        return PublicKey(ffi.cast("secp256k1_pubkey *", row.ctypes.data)).format()

    def multiply_sum(
        self, table: UInt8[np.ndarray, "n 64"], exponents: UInt64[np.ndarray, " n"], threads: int = 1
    ) -> bytes:
        """See `Group.multiply_sum`; threads run side by side, as the C calls release the interpreter."""
        # Zeros cost sorting alone, but a table that lies scattered in memory costs copying.
        table = np.ascontiguousarray(table)
        cuts = np.linspace(0, len(table), max(1, min(threads, len(table))) + 1).astype(int)
        parts = [(table[a:b], exponents[a:b]) for a, b in pairwise(cuts)]
        if len(parts) == 1:
            found = [_bucket_sum(*parts[0])]
        else:
            with ThreadPoolExecutor(len(parts)) as pool:
                found = list(pool.map(lambda part: _bucket_sum(*part), parts))
        elements = [self.table_element(total.row) for total in found if total.present]
        return self.combine(elements) if elements else self.identity
