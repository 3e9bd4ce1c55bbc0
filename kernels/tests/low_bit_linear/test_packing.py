"""Codes in and out of their bytes."""

import pytest
import torch

from hexad.core.errors import InputError
from hexad.kernels.low_bit_linear import (
    cpu,
    integer_levels,
    level_sums,
    pack_codes,
    packed_bytes,
    unpack_codes,
)

WIDTHS = pytest.mark.parametrize("bits", range(1, 9))
LENGTHS = [1, 5, 8, 13, 64, 129, 1000]


@WIDTHS
@pytest.mark.parametrize("k", LENGTHS)
def test_unpacking_undoes_packing(k, bits):
    codes = torch.randint(0, 2**bits, (3, k), dtype=torch.uint8)
    packed = pack_codes(codes, bits)
    assert packed.shape == (3, packed_bytes(k, bits)) == (3, -(-k * bits // 8))
    assert torch.equal(unpack_codes(packed, bits, k), codes)


@WIDTHS
def test_a_row_is_one_stream_of_bits(bits):
    codes = torch.randint(0, 2**bits, (1, 21), dtype=torch.uint8)
    stream = sum(int(code) << (bits * i) for i, code in enumerate(codes[0]))
    assert bytes(pack_codes(codes, bits)[0].tolist()) == stream.to_bytes(packed_bytes(21, bits), "little")


def test_four_bits_lie_two_in_a_byte():
    assert pack_codes(torch.tensor([[1, 2, 15]], dtype=torch.uint8), 4).tolist() == [[0x21, 0x0F]]


def test_many_rows_are_taken_a_few_at_a_time():
    codes = torch.randint(0, 8, (9, 2**19), dtype=torch.uint8)
    assert torch.equal(unpack_codes(pack_codes(codes, 3), 3, 2**19), codes)


@WIDTHS
@pytest.mark.parametrize("native", [False, True])
def test_sums_of_levels(monkeypatch, native, bits):
    if not native:
        monkeypatch.setattr(cpu, "reason_against", lambda k=1: "not asked for")
    elif cpu.reason_against() is not None:
        pytest.skip("no native code here")
    levels = integer_levels(bits)
    for k in LENGTHS:
        codes = torch.randint(0, 2**bits, (5, k), dtype=torch.uint8)
        packed = pack_codes(codes, bits)
        if k * bits % 8:
            packed[:, -1] |= 0x80  # what lies beyond the last code does not count
        sums = level_sums(packed, levels, bits=bits, k=k)
        assert sums.dtype == torch.int32
        assert sums.tolist() == levels.long()[codes.long()].sum(-1).tolist()


@pytest.mark.parametrize("native", [False, True])
def test_a_code_without_a_level_is_found(monkeypatch, native):
    if not native:
        monkeypatch.setattr(cpu, "reason_against", lambda k=1: "not asked for")
    codes = torch.randint(0, 3, (7, 50), dtype=torch.uint8)
    codes[4, 33] = codes[6, 2] = 3
    packed = pack_codes(codes, 2)
    with pytest.raises(
        InputError, match="code 3 at row 4, column 33 stands for no level; codes run from 0 to 2"
    ):
        level_sums(packed, integer_levels("ternary"), bits=2, k=50)


@pytest.mark.parametrize(
    ("codes", "bits", "message"),
    [
        ([[1]], 4, "codes must be a tensor, got list"),
        (torch.ones(2, 3), 4, "codes must be a uint8 matrix that is not empty, got torch.float32"),
        (torch.ones(3, dtype=torch.uint8), 4, r"got torch.uint8 of shape \(3,\)"),
        (torch.ones(0, 3, dtype=torch.uint8), 4, r"got torch.uint8 of shape \(0, 3\)"),
        (torch.ones(2, 3, dtype=torch.uint8).to_sparse(), 4, "codes is a sparse_coo tensor"),
        (torch.ones(2, 3, dtype=torch.uint8, device="meta"), 4, "codes are on the meta device"),
        (torch.ones(2, 3, dtype=torch.uint8), 0, "bits must be a whole number from 1 to 8, got 0"),
        (torch.ones(2, 3, dtype=torch.uint8), 9, "bits must be a whole number from 1 to 8, got 9"),
        (torch.ones(2, 3, dtype=torch.uint8), True, "bits must be a whole number from 1 to 8, got True"),
        (torch.tensor([[0, 16]], dtype=torch.uint8), 4, "code 16 at row 0, column 1 stands for no level"),
    ],
)
def test_codes_that_cannot_be_packed(codes, bits, message):
    with pytest.raises(InputError, match=message):
        pack_codes(codes, bits)


def test_rows_of_another_length_are_refused():
    packed = pack_codes(torch.ones(2, 64, dtype=torch.uint8), 4)
    with pytest.raises(
        InputError, match="rows of 32 bytes, but 64 codes of 3 bits take 24; were they packed"
    ):
        unpack_codes(packed, 3, 64)
    with pytest.raises(InputError, match="k must be a whole number from 1 to"):
        unpack_codes(packed, 4, 0)
