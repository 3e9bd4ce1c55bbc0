"""Groups of prime order in which discrete logarithms are hard, behind one interface.

`get_group("secp256k1")` is fast (libsecp256k1 through coincurve); `get_group("ristretto255")` multiplies in
constant time (libsodium through rbcl). Elements are their canonical encodings, `bytes`.
"""

import functools
from collections.abc import Sequence, Sized
from typing import Literal, Protocol, get_args

import numpy as np
from jaxtyping import UInt8, UInt64

from hexad.core.errors import InputError, MissingExtraError
from hexad.core.validation import check_choice
from hexad.federated.janus.errors import ProtocolError

GroupName = Literal["secp256k1", "ristretto255"]
GROUPS: tuple[str, ...] = get_args(GroupName)
HASH_DOMAIN = b"hexad-janus-v1-generator"


class Group(Protocol):
    """A group of prime order `order`, written additively; elements are `bytes` of `element_size`."""

    name: str
    order: int
    element_size: int
    identity: bytes
    row_size: int
    """Bytes of a point in a table, in the library's own representation."""
    library: str
    """Library and version: a table is only valid for them."""

    def decode(self, data: bytes) -> bytes:
        """`data` if it is the canonical encoding of an element.

        Raises:
            ProtocolError: check `"point"`.
        """
        ...

    def base_mul(self, scalar: int) -> bytes:
        """`scalar` times the standard base point."""
        ...

    def mul(self, element: bytes, scalar: int) -> bytes:
        """`scalar` times `element`."""
        ...

    def combine(self, elements: Sequence[bytes]) -> bytes:
        """The sum of the elements.

        Raises:
            InputError: there are none.
        """
        ...

    def neg(self, element: bytes) -> bytes:
        """The inverse element."""
        ...

    def hash_to_group(self, message: bytes) -> bytes:
        """A point of which nobody knows a discrete logarithm."""
        ...

    def hash_table(self, prefix: bytes, start: int, count: int) -> UInt8[np.ndarray, "count row_size"]:
        """The points hash_to_group(prefix || index) of `count` indices (8 bytes, big-endian) as a table."""
        ...

    def table_element(self, row: UInt8[np.ndarray, " row_size"]) -> bytes:
        """The element in a row of a table."""
        ...

    def multiply_sum(
        self,
        table: UInt8[np.ndarray, "n row_size"],
        exponents: UInt64[np.ndarray, " n"],
        threads: int = 1,
    ) -> bytes:
        """The sum of exponents[j] times table[j]; the identity where n is 0."""
        ...


def reduce_wide(data: bytes, order: int) -> int:
    """64 uniform bytes as a scalar, uniform to 2^-250."""
    return int.from_bytes(data, "big") % order


def scalar_to_bytes(scalar: int) -> bytes:
    """32 bytes, big-endian."""
    return scalar.to_bytes(32, "big")


def scalar_from_bytes(data: bytes, order: int) -> int:
    """A scalar below `order`.

    Raises:
        ProtocolError: check `"scalar"`: it is not, or there are not 32 bytes.
    """
    value = int.from_bytes(data, "big")
    if len(data) != 32 or value >= order:
        raise ProtocolError(
            "scalar", "a scalar is not below the order of the group; the message is malformed"
        )
    return value


def check_elements(elements: Sized) -> None:
    """Refuse an empty sum (`InputError`): libsecp256k1 would end the process."""
    if len(elements) == 0:
        raise InputError("the sum of no group elements was asked for; give at least one")


@functools.cache
def get_group(name: str) -> Group:
    """The group of that name.

    Raises:
        InputError: there is none.
        MissingExtraError: its library is not installed.
    """
    check_choice("group", name, GROUPS)
    try:
        if name == "secp256k1":
            from hexad.federated.janus.secp256k1 import Secp256k1Group

            return Secp256k1Group()
        from hexad.federated.janus.ristretto255 import Ristretto255Group

        return Ristretto255Group()
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"the group {name} needs {error.name!r}, which is not installed; "
            'run: pip install "hexad-federated[janus]"'
        ) from error
