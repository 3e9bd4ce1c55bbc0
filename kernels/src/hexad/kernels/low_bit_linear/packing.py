"""Codes of 1 to 8 bits, packed without gaps.

A row is one stream of bits, least significant first: code i lies in bits i * bits to (i + 1) * bits - 1. The
last byte of a row is filled up with zeros. So 4 bits put an even code into the low half of a byte and the odd
one after it into the high half, and 3 bits put eight codes into three bytes.
"""

import torch
from jaxtyping import UInt8
from torch import Tensor

from hexad.kernels.low_bit_linear import checks


def packed_bytes(k: int, bits: int) -> int:
    """Bytes of a row of k codes."""
    return -(-k * bits // 8)


def pack_codes(codes: UInt8[Tensor, "rows k"], bits: int) -> UInt8[Tensor, "rows bytes"]:
    """Pack a matrix of codes below 2**bits, each row on its own.

    Raises:
        InputError: for another dtype or shape, bits outside 1 to 8, a code that needs more bits.
    """
    checks.check_bits(bits)
    checks.check_matrix("codes", codes, torch.uint8)
    checks.check_codes(codes, 2**bits)
    rows, k = codes.shape
    # Eight codes make whole bytes: their bits go into one 64-bit integer, whose first `bits` bytes are kept.
    groups = torch.nn.functional.pad(codes, (0, -k % 8)).view(rows, -(-k // 8), 8).to(torch.int64)
    shift = torch.arange(8, device=codes.device) * bits
    streams = (groups << shift).sum(-1)
    split = (streams[..., None] >> torch.arange(0, 8 * bits, 8, device=codes.device)) & 0xFF
    return split.to(torch.uint8).flatten(1)[:, : packed_bytes(k, bits)].contiguous()


def unpack_codes(packed: UInt8[Tensor, "rows bytes"], bits: int, k: int) -> UInt8[Tensor, "rows k"]:
    """The k codes of each row.

    Raises:
        InputError: for another dtype or shape, bits outside 1 to 8, rows that do not hold k codes.
    """
    checks.check_packed(packed, bits, k)
    padded = torch.nn.functional.pad(packed, (0, -packed.shape[1] % bits)).view(packed.shape[0], -1, bits)
    split = padded.to(torch.int64) << torch.arange(0, 8 * bits, 8, device=packed.device)
    streams = split.sum(-1)  # bits do not overlap, so that the sum is their union
    codes = (streams[..., None] >> torch.arange(8, device=packed.device) * bits) & (2**bits - 1)
    return codes.to(torch.uint8).flatten(1)[:, :k].contiguous()
