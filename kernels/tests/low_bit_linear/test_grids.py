"""Integer levels and the rounding of rows, against the definitions written out in float64."""

import pytest
import torch

from hexad.core.errors import InputError
from hexad.kernels.low_bit_linear import ActivationGrid, code_bits, integer_levels, quantize_rows
from hexad.kernels.low_bit_linear.grids import _nearest_e2m1

GRIDS = [*range(1, 9), "ternary", "fp4"]


def test_levels():
    assert integer_levels(1).tolist() == [-1, 1]
    assert integer_levels(2).tolist() == [-3, -1, 1, 3]
    assert integer_levels(8).tolist() == list(range(-255, 256, 2))
    assert integer_levels("ternary").tolist() == [-1, 0, 1]
    # E2M1: a sign, two bits of exponent, one of mantissa, in half units (OCP Microscaling Formats 1.0).
    patterns = [
        (-1) ** (code >> 3) * ((code & 1) if code & 6 == 0 else (2 + (code & 1)) * 2 ** ((code >> 1 & 3) - 1))
        for code in range(16)
    ]
    assert integer_levels("fp4").tolist() == patterns
    assert [code_bits(bits) for bits in GRIDS] == [*range(1, 9), 2, 4]


@pytest.mark.parametrize("bits", GRIDS)
def test_each_entry_takes_the_nearest_level(bits, grid):
    x = torch.randn(7, 1000, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 7)[:, None]
    codes, unit = quantize_rows(x, grid(bits))
    levels = integer_levels(bits).double()
    values = unit.double()[:, None] * levels[codes.long()]
    best = (x.double()[..., None] - unit.double()[:, None, None] * levels).abs().amin(-1)
    # An entry halfway between two levels may go either way within float32.
    torch.testing.assert_close((x - values).abs(), best, atol=0, rtol=1e-4)
    rms = x.double().square().mean(-1).sqrt()
    largest = grid(bits).alpha * rms + 1e-8
    torch.testing.assert_close(unit.double() * levels.max(), largest, atol=0, rtol=3e-7)


@pytest.mark.parametrize("bits", GRIDS)
def test_every_level_is_used_and_no_other(bits, grid):
    noise = torch.randn(100_000, generator=torch.Generator().manual_seed(1))
    codes, _ = quantize_rows(torch.cat((noise, torch.linspace(-5, 5, 4000)))[None], grid(bits))
    assert codes.unique().tolist() == list(range(len(integer_levels(bits))))


@pytest.mark.parametrize("bits", GRIDS)
def test_scale_equivariance(bits, grid):
    x = torch.randn(4, 256, generator=torch.Generator().manual_seed(2))
    codes, unit = quantize_rows(x, grid(bits))
    more, larger = quantize_rows(64 * x, grid(bits))  # by a power of two, so that nothing rounds otherwise
    assert torch.equal(more, codes)
    torch.testing.assert_close(larger, 64 * unit, atol=1e-5, rtol=1e-6)  # 1e-8 does not scale


def test_the_formula_of_the_paper(grid):
    """Step 3: (round(clamp(x, -a, a) / step + 1/2) - 1/2) * step with step = 2 a / (n - 1)."""
    for bits in (1, 2, 4, 8):
        x, n = torch.randn(3, 512, generator=torch.Generator().manual_seed(bits)), 2**bits
        codes, unit = quantize_rows(x, grid(bits))
        rms = x.double().square().mean(-1, keepdim=True).sqrt().float()
        a = grid(bits).alpha * rms + 1e-8
        step = 2 * a / (n - 1)
        expected = (torch.round(torch.clamp(x, -a, a) / step + 0.5) - 0.5) * step
        values = unit[:, None] * integer_levels(bits)[codes.long()]
        torch.testing.assert_close(values, expected, atol=0, rtol=5e-7)


def test_a_row_of_zeros(grid):
    """Has the bound 1e-8: on the symmetric grids, which have no zero, its entries lie next below it."""
    x = torch.zeros(2, 16)
    for bits in (1, 4, 8):
        codes, unit = quantize_rows(x, grid(bits))
        values = unit[:, None] * integer_levels(bits)[codes.long()]
        torch.testing.assert_close(values, torch.full((2, 16), -1e-8 / (2**bits - 1)))
    for bits in ("ternary", "fp4"):
        codes, unit = quantize_rows(x, grid(bits))
        assert (unit > 0).all()
        assert not integer_levels(bits)[codes.long()].any()


def test_ties_of_fp4_go_to_the_even_pattern():
    middles = torch.tensor([0.5, 1.5, 2.5, 3.5, 5, 7, 10])
    levels = integer_levels("fp4")
    assert levels[_nearest_e2m1(middles).long()].tolist() == [0, 2, 2, 4, 4, 8, 8]
    assert levels[_nearest_e2m1(-middles).long()].tolist() == [0, -2, -2, -4, -4, -8, -8]


@pytest.mark.parametrize(
    ("bits", "alpha", "message"),
    [
        (0, 1.0, "bits must be a whole number from 1 to 8, 'ternary' or 'fp4', got 0"),
        (9, 1.0, "got 9"),
        (1.585, 1.0, "got 1.585"),
        (True, 1.0, "got True"),
        ("int4", 1.0, "got 'int4'"),
        (4, 0.0, "alpha is 0.0"),
        (4, float("nan"), "alpha is nan"),
        (4, -1.0, "alpha is -1.0"),
        (4, "2", "alpha must be a number"),
    ],
)
def test_grids_that_do_not_exist(bits, alpha, message):
    with pytest.raises(InputError, match=message):
        ActivationGrid(bits, alpha)
