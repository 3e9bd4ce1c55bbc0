"""Rounding and the trust mask."""

import math

import pytest
import torch

from hexad.core.errors import InputError
from hexad.kernels.low_bit_linear import ActivationGrid, integer_levels, quantize_rows
from hexad.llm_efficiency.quest import QuestConfig, quantize, scale_for
from hexad.llm_efficiency.quest.grids import grid_for
from hexad.llm_efficiency.quest.quantizer import make_rule, sparse_mask

GRIDS = [1, 2, 3, 4, 8, "ternary", "fp4"]


def rows(n=64, k=256, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    scale = torch.logspace(-3, 2, n, dtype=dtype)[:, None]
    return scale * torch.randn(n, k, generator=generator, dtype=dtype)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_the_formula_of_the_paper(bits):
    x, n = rows(), 2**bits
    rms = x.square().mean(-1, keepdim=True).sqrt()
    a = scale_for(bits) * rms + 1e-8
    step = 2 * a / (n - 1)
    expected = (torch.round(x.clamp(-a, a) / step + 0.5) - 0.5) * step
    xq, codes, scale, _ = quantize(x, bits)
    torch.testing.assert_close(xq, expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(xq, (codes.double() - (n - 1) / 2).float() * step, rtol=1e-5, atol=0)
    torch.testing.assert_close(scale, step[:, 0] / 2, rtol=1e-6, atol=0)
    # The outermost levels are +-a.
    assert (xq.abs() / a).max() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("bits", GRIDS)
def test_every_level_is_used_and_none_else(bits):
    grid = grid_for(bits)
    x = torch.randn(400, 4096, generator=torch.Generator().manual_seed(0))
    codes = quantize(x, bits).codes
    assert codes.unique().tolist() == list(range(len(grid.levels)))
    assert codes.dtype == torch.uint8


@pytest.mark.parametrize("bits", GRIDS)
def test_values_go_to_the_nearest_level(bits):
    x = rows(8, 128, dtype=torch.float64)
    xq, _, scale, _ = quantize(x, bits)
    levels = torch.tensor(grid_for(bits).levels, dtype=torch.float64) * scale[:, None]
    nearest = (x[..., None] - levels[:, None]).abs().amin(-1)
    torch.testing.assert_close((xq - x).abs(), nearest, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bits", GRIDS)
def test_scale_equivariance(bits):
    x = rows()
    once, scaled = quantize(x, bits), quantize(1024 * x, bits)
    # The 1e-8 in a is 1e-5 of the smallest rows here.
    assert torch.equal(once.codes[8:], scaled.codes[8:])
    torch.testing.assert_close(scaled.values, 1024 * once.values, rtol=2e-5, atol=0)


@pytest.mark.parametrize("bits", GRIDS)
def test_grid_values_stay_at_a_fixed_scale(bits):
    once = quantize(rows(), bits)
    again = quantize(once.values, bits, scale=once.scale)
    assert torch.equal(again.codes, once.codes)
    assert torch.equal(again.values, once.values)
    assert bool(again.mask.all())


@pytest.mark.parametrize("bits", GRIDS)
def test_codes_are_those_of_the_kernel_to_the_bit(bits):
    x = rows(256, 384)
    levels, unit = quantize_rows(x, ActivationGrid(bits, scale_for(bits)))
    ours = quantize(x, bits)
    assert torch.equal(unit, ours.scale)
    theirs = integer_levels(bits)[levels.long()].float()
    assert torch.equal(theirs, torch.tensor(grid_for(bits).levels)[ours.codes.long()].float())


@pytest.mark.parametrize(
    ("bits", "settings", "share"),
    [
        (1, {}, 0.29962),
        (1, {"outer_scale": 2.0}, 0.11054),
        (2, {}, 0.046440),
        (3, {}, 0.019074),
        (4, {}, 0.0073270),
        (8, {}, 8.2306e-5),
    ],
)
def test_masked_share_of_gaussian_rows(bits, settings, share):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(100, 40_000, generator=generator)
    masked = 1 - quantize(x, bits, **settings).mask.double().mean()
    sigma = math.sqrt(share * (1 - share) / x.numel())
    assert abs(float(masked) - share) < 3 * sigma


@pytest.mark.parametrize("bits", [2, 4, "ternary", "fp4"])
def test_the_mask_is_the_error_within_half_the_largest_gap(bits):
    x = rows(dtype=torch.float64)
    xq, _, scale, mask = quantize(x, bits)
    half = scale[:, None] * grid_for(bits).half_gap
    error = (xq - x).abs()
    sure = (error - half).abs() > 1e-9 * half
    assert torch.equal(mask[sure], (error <= half)[sure])
    # It is not the clip mask |x| <= a, which removes more.
    a = scale[:, None] * grid_for(bits).top
    assert bool((mask & (x.abs() > a)).any())
    assert bool(mask[x.abs() <= a].all())


def test_other_trust_regions():
    x = rows(dtype=torch.float64)
    xq, _, scale, _ = quantize(x, 4)
    error = (xq - x).abs() / scale[:, None]
    for trust in (0.5, 2.0):
        mask = quantize(x, 4, trust=trust).mask
        sure = (error - trust).abs() > 1e-9
        assert torch.equal(mask[sure], (error <= trust)[sure])
    assert bool(quantize(x, 4, trust="none").mask.all())
    assert bool(quantize(x, 1, trust=math.inf).mask.all())


def test_a_row_of_zeros():
    x = torch.zeros(2, 128)
    x[1] = torch.randn(128, generator=torch.Generator().manual_seed(0))
    # a = 1e-8 there: no level is 0, so mid-rise entries are the level next to it; never NaN.
    assert quantize(x, 1).values[0].unique().tolist() == pytest.approx([-1e-8])
    assert quantize(x, 4).values[0].unique().tolist() == pytest.approx([-1e-8 / 15])
    for bits in GRIDS:
        quantized = quantize(x, bits)
        assert bool(quantized.values.isfinite().all())
        assert bool(quantized.mask[0].all()), "such a row must be able to leave zero"
    assert float(quantize(x, "ternary").values[0].abs().max()) == 0


def test_the_integer_identity_of_the_export():
    generator = torch.Generator().manual_seed(0)
    x = quantize(torch.randn(5, 384, generator=generator), 4)
    w = quantize(torch.randn(7, 384, generator=generator), 2)
    a = x.codes.long() - 2**4 // 2
    b = w.codes.long() - 2**2 // 2
    # sum (a + 1/2)(b + 1/2) = sum a b + (sum a + sum b) / 2 + k / 4, here times 4 and exact in int64.
    exact = 4 * (a @ b.T) + 2 * (a.sum(-1)[:, None] + b.sum(-1)[None]) + 384
    assert torch.equal(exact, (2 * a + 1) @ (2 * b + 1).T)
    product = exact.double() * x.scale.double()[:, None] * w.scale.double()[None]
    torch.testing.assert_close(product, x.values.double() @ w.values.double().T, rtol=1e-5, atol=1e-5)


def test_sparsity_keeps_the_larger_pairs():
    x = torch.tensor([[1.0, 1.0, 5.0, 0.0, 0.1, 0.1, -3.0, 3.0]])
    assert sparse_mask(x).tolist() == [[False, False, True, True, False, False, True, True]]
    x = rows(16, 128)
    quantized = quantize(x, 4, sparse=True)
    kept = sparse_mask(x)
    assert torch.equal(quantized.values != 0, kept)
    assert torch.equal(kept.reshape(16, -1, 8).sum(-1), torch.full((16, 16), 4))
    # Scaled as the sparse row, rounded as any other.
    dense = quantize(x * kept, 4)
    assert torch.equal(quantized.values[kept], dense.values[kept])
    assert quantized.codes[~kept].unique().tolist() == [16]
    error, half = (quantized.values - x).abs(), quantized.scale[:, None]
    sure = (error / half - 1).abs() > 1e-5
    assert torch.equal(quantized.mask[sure], (error <= half)[sure])


def test_half_precision_is_rounded_in_float32():
    x = rows(16, 128, seed=3)
    for dtype in (torch.bfloat16, torch.float16):
        quantized = quantize(x.to(dtype)[:12], 4)
        assert quantized.values.dtype == dtype
        assert quantized.scale.dtype == torch.float32
        assert torch.equal(quantized.codes, quantize(x.to(dtype)[:12].float(), 4).codes)


def test_sixteen_bits_are_nearly_exact():
    x = rows(4, 128, dtype=torch.float64)
    inside = x.abs() < scale_for(16) * x.square().mean(-1, keepdim=True).sqrt()
    error = (quantize(x, 16).values - x).abs()[inside] / x.square().mean(-1, keepdim=True).sqrt().expand_as(
        x
    )[inside]
    assert float(error.max()) < 1e-4


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: quantize(torch.ones(2, 4, dtype=torch.int64), 4), "torch.int64; give floating-point"),
        (lambda: quantize([1.0], 4), "must be a tensor, not list"),
        (lambda: quantize(torch.tensor([1.0, float("nan")]), 4), "NaN or infinity"),
        (lambda: quantize(torch.tensor([1.0, float("inf")]), 4), "NaN or infinity"),
        (lambda: quantize(torch.tensor(1.0), 4), r"shape \(\); its last dimension"),
        (lambda: quantize(torch.ones(3, 0), 4), "its last dimension"),
        (lambda: quantize(torch.ones(4), 9), "bits is 9"),
        (lambda: quantize(torch.ones(4), 4, trust=0), "trust is 0"),
        (lambda: quantize(torch.ones(4), 4, trust="off"), "unknown trust 'off'"),
        (lambda: quantize(torch.ones(4), 4, outer_scale=0.5), "outer_scale is 0.5"),
        (lambda: quantize(torch.ones(12), 4, sparse=True), "rows of 12 cannot be sparsified"),
        (lambda: quantize(torch.ones(2, 4), 4, scale=torch.ones(3)), r"scale has shape \(3,\)"),
        (lambda: quantize(torch.ones(2, 4), 4, scale=torch.zeros(2)), "must be positive"),
        (lambda: make_rule(4, sparse=1), "sparse is 1"),
    ],
)
def test_bad_input(call, text):
    with pytest.raises(InputError, match=text):
        call()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: quantize(torch.ones(2, 8), [4]), r"bits is \[4\]; give 1 to 8"),
        (lambda: quantize(torch.ones(2, 8), 2, scale=1.0), "scale must be a tensor, not float"),
        (lambda: quantize(torch.ones(2, 8).to(torch.float8_e4m3fn), 2), "torch.float8_e4m3fn; give bfloat16"),
        (lambda: quantize(torch.ones(2, 8).to_sparse(), 2), "a sparse_coo tensor; give a dense one"),
        (lambda: quantize(torch.ones(2, 8, device="meta"), 2), "meta device and holds no numbers"),
        (lambda: quantize(torch.ones(2, 8), 2, trust=True), "numbers, not True or False"),
        (lambda: QuestConfig(outer_scale=True), "numbers, not True or False"),
        (lambda: QuestConfig(block=128, min_block=256), r"min_block is 256, more than block \(128\)"),
        (lambda: QuestConfig(8, 4, sparse=True), "sparse weights of 8 bits have 257 levels"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(call, text):
    with pytest.raises(InputError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_numbers_too_large_for_a_grid():
    with pytest.raises(InputError, match="x or its scale is too large"):
        quantize(torch.full((1, 8), 3e38), 2)
    with pytest.raises(InputError, match="every scale must be positive and finite"):
        quantize(torch.ones(1, 8), 2, scale=torch.tensor([math.inf]))
    with pytest.raises(InputError, match="x or its scale is too large"):
        quantize(torch.ones(1, 8), 2, scale=torch.tensor([3e38]))
