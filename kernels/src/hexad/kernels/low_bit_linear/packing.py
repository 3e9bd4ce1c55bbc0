"""Codes of 1 to 8 bits, packed without gaps.

A row is one stream of bits, least significant first: code i lies in bits i * bits to (i + 1) * bits - 1. The
last byte of a row is filled up with zeros. So 4 bits put an even code into the low half of a byte and the odd
one after it into the high half, and 3 bits put eight codes into three bytes.
"""

import torch
from jaxtyping import Int, Int32, UInt8
from torch import Tensor

from hexad.kernels.low_bit_linear import checks

# Codes that are taken apart together: each passes through eight bytes on its way.
_CODES_AT_ONCE = 2**22


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
    return torch.cat([_pack(part, bits) for part in codes.split(_rows_at_once(codes.shape[1]))])


def unpack_codes(packed: UInt8[Tensor, "rows bytes"], bits: int, k: int) -> UInt8[Tensor, "rows k"]:
    """The k codes of each row.

    Raises:
        InputError: for another dtype or shape, bits outside 1 to 8, rows that do not hold k codes.
    """
    checks.check_packed(packed, bits, k)
    return torch.cat([_unpack(part, bits, k) for part in packed.split(_rows_at_once(k))])


def level_sums(
    packed: UInt8[Tensor, "rows bytes"], levels: Int[Tensor, " levels"], *, bits: int, k: int
) -> Int32[Tensor, " rows"]:
    """The sum of the levels of each row of packed weights, which `low_bit_linear` takes as `row_sums`.

    It looks through all codes, so compute it once, where the weights are loaded.

    Raises:
        InputError: for weights that do not hold k codes a row, a code that stands for no level.
    """
    checks.check_packed(packed, bits, k)
    checks.check_levels(levels, bits)
    checks.check_level_values(levels)
    if packed.device.type == "cpu":
        from hexad.kernels.low_bit_linear import cpu

        if cpu.reason_against() is None:
            return cpu.level_sums(packed, levels, bits=bits, k=k)
    values, sums, step = levels.to(packed.device, torch.int32), [], _rows_at_once(k)
    for first, part in zip(range(0, packed.shape[0], step), packed.split(step), strict=True):
        codes = _unpack(part, bits, k)
        checks.check_codes(codes, levels.shape[0], first_row=first)
        sums.append(values[codes.long()].sum(-1, dtype=torch.int32))
    return torch.cat(sums)


def _rows_at_once(k: int) -> int:
    return max(1, _CODES_AT_ONCE // k)


def _pack(codes: UInt8[Tensor, "rows k"], bits: int) -> UInt8[Tensor, "rows bytes"]:
    rows, k = codes.shape
    # Eight codes make whole bytes: their bits go into one 64-bit integer, whose first `bits` bytes are kept.
    groups = torch.nn.functional.pad(codes, (0, -k % 8)).view(rows, -1, 8).to(torch.int64)
    streams = (groups << torch.arange(8, device=codes.device) * bits).sum(-1)
    split = (streams[..., None] >> torch.arange(0, 8 * bits, 8, device=codes.device)) & 0xFF
    return split.to(torch.uint8).flatten(1)[:, : packed_bytes(k, bits)]


def _unpack(packed: UInt8[Tensor, "rows bytes"], bits: int, k: int) -> UInt8[Tensor, "rows k"]:
    padded = torch.nn.functional.pad(packed, (0, -packed.shape[1] % bits)).view(packed.shape[0], -1, bits)
    # Bytes of a stream do not overlap, so that their sum is their union.
    streams = (padded.to(torch.int64) << torch.arange(0, 8 * bits, 8, device=packed.device)).sum(-1)
    codes = (streams[..., None] >> torch.arange(8, device=packed.device) * bits) & (2**bits - 1)
    return codes.to(torch.uint8).flatten(1)[:, :k]
