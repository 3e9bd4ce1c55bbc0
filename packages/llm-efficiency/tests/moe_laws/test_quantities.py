"""Counts and bytes as people write them."""

import pytest

from hexad.core.errors import InputError
from hexad.llm_efficiency.moe_laws.quantities import parse_bytes, short, short_bytes


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("80GB", 80e9),
        ("80G", 80e9),
        ("80gb", 80e9),
        (" 64 GiB ", 64 * 2**30),
        ("64gib", 64 * 2**30),
        ("8x80GB", 640e9),
        ("8 × 80 GB", 640e9),
        ("1,000GB", 1e12),
        ("24e9", 24e9),
        ("1.5tb", 1.5e12),
        ("512B", 512),
        ("3k", 3000),
    ],
)
def test_bytes_are_read(text, number):
    assert parse_bytes(text) == number


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lots", "--memory is 'lots'; write a number of bytes"),
        ("", "write a number of bytes"),
        ("0", "write a number of bytes"),
        ("-5GB", "write a number of bytes"),
        ("1e400", "write a number of bytes"),
        ("80XB", "write a number of bytes"),
        ("1,00GB", "write a number of bytes"),
        ("80Gb", "Gb are bits; write bytes, such as 80GB"),
        ("80Gib", "Gib are bits; write bytes, such as 80GiB"),
    ],
)
def test_what_is_no_number_of_bytes(text, words):
    with pytest.raises(InputError, match=words):
        parse_bytes(text, "--memory")


def test_numbers_are_short():
    assert [short(count) for count in (12, 999.6, 1.7e9, 99.96e7, 2.56e17)] == [
        "12",
        "1k",
        "1.7B",
        "1B",
        "2.56e+17",
    ]
    sizes = [short_bytes(count) for count in (512, 13.1e6, 80e9, 1.25e21, 1e30)]
    assert sizes == ["512 bytes", "13.1 MB", "80 GB", "1.25 ZB", "1e+06 YB"]
