"""One-time pads from a seed of 32 bytes: what S_1 gets instead of the pad itself."""

import secrets

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from jaxtyping import UInt

from hexad.core.errors import InputError
from hexad.federated.janus.groups import Group, reduce_wide

SEED_SIZE = 32


def new_seed() -> bytes:
    """A fresh seed from the operating system's generator."""
    return secrets.token_bytes(SEED_SIZE)


def random_scalar(group: Group) -> int:
    """Uniform below the group's order."""
    return secrets.randbelow(group.order)


def chacha20_block_stream(key: bytes, counter: int, nonce: bytes, size: int) -> bytes:
    """The ChaCha20 key stream of RFC 8439: a key of 32 bytes, the first block's counter, a nonce of 12."""
    start = counter.to_bytes(4, "little") + nonce
    return Cipher(algorithms.ChaCha20(key, start), mode=None).encryptor().update(bytes(size))


def expand(seed: bytes, round_number: int, dim: int, modulus_bits: int) -> UInt[np.ndarray, " dim"]:
    """The pad k = ChaCha20(seed, nonce = round) as `dim` words below 2^modulus_bits, little-endian.

    Raises:
        InputError: the seed has not 32 bytes, or more than 2^32 blocks would be needed.
    """
    if len(seed) != SEED_SIZE:
        raise InputError(f"a seed has {len(seed)} bytes; it must have {SEED_SIZE}")
    word = np.dtype(f"<u{modulus_bits // 8}")
    size = dim * word.itemsize
    if size > 64 << 32:
        raise InputError(f"a pad of {size} bytes needs more than 2^32 ChaCha20 blocks; split the vector")
    return np.frombuffer(chacha20_block_stream(seed, 0, round_number.to_bytes(12, "little"), size), word)


def scalar_pad(seed: bytes, group: Group) -> int:
    """s = HKDF(seed, "r") reduced from 64 bytes: the pad of a commitment's randomness."""
    wide = HKDF(SHA256(), 64, salt=None, info=b"hexad-janus-v1 r").derive(seed)
    return reduce_wide(wide, group.order)
