"""Every backend against sums of whole numbers in int64, and floats to a millionth."""

import math
from itertools import product

import pytest
import torch

from hexad.kernels.hadamard_transform import pure as hadamard
from hexad.kernels.low_bit_linear import (
    ActivationGrid,
    available_backends,
    cpu,
    integer_levels,
    level_sums,
    low_bit_linear,
    pack_codes,
    pure,
    quantize_rows,
    reference,
)

WEIGHTS = [*range(1, 9), "ternary", "fp4"]
INPUTS = [1, 2, 3, 4, 8, "ternary", "fp4"]
# Rounding of the unit, its product with the scale, and the result, each 2^-24; then that of the dtype of x.
TOLERANCE = {torch.float32: 5e-7, torch.float16: 6e-4, torch.bfloat16: 5e-3}
BUILDS = [
    "native",
    "native without AMX",
    "AVX-512 without byte permutations",
    "AVX2 with int8 dot products",
    "x86-64-v3",
    "x86-64",
]


def skip_unless_served(backend: str) -> None:
    reason = available_backends("cpu")[backend]
    if reason is not None:
        pytest.skip(reason)


def close(y: torch.Tensor, exact: torch.Tensor, tolerance: float) -> bool:
    """Relative to each row's largest entry: a sum near zero has lost the digits of its terms."""
    return bool(((y.double() - exact).abs() <= tolerance * exact.abs().amax(-1, keepdim=True)).all())


def test_integer_identity():
    """sum (a + 1/2)(w + 1/2) = sum a w + (sum a + sum w) / 2 + k / 4, four times over to stay whole."""
    a, w = torch.randint(-128, 128, (2, 50, 999))
    left = ((2 * a + 1) * (2 * w + 1)).sum(-1)
    assert torch.equal(left, 4 * (a * w).sum(-1) + 2 * (a.sum(-1) + w.sum(-1)) + 999)


@pytest.mark.parametrize("bits", WEIGHTS)
def test_the_reference_is_the_product_of_the_rounded_operands(layer, grid, bits):
    weights = layer(bits, 20, 256)
    x = torch.randn(5, 256, generator=torch.Generator().manual_seed(1))
    for activation in (4, 8, "fp4"):
        codes, unit = quantize_rows(hadamard.by_steps(x, 64), grid(activation))
        rounded = unit.double()[:, None] * integer_levels(activation).double()[codes.long()]
        product = rounded @ (weights.scale.double()[:, None] * weights.integers.double()).T + weights.bias
        y = reference.linear(
            x, weights.packed, weights.scale, weights.bias, **weights.options(activation, 64)
        )
        torch.testing.assert_close(y.double(), product, atol=1e-4 * float(product.abs().max()), rtol=0)
        assert close(y, product, 5e-7)


@pytest.mark.parametrize("bits", [4, 8])
def test_many_bits_come_near_the_unrounded_product(grid, bits):
    """Rounding both operands in the Hadamard domain is the paper's layer: its error is that of the grids."""
    generator = torch.Generator().manual_seed(2)
    x, w = torch.randn(8, 512, generator=generator), torch.randn(64, 512, generator=generator)
    codes, scale = quantize_rows(hadamard.by_steps(w, 128), grid(bits))
    options = {"levels": integer_levels(bits), "bits": bits, "activation": grid(bits), "block": 128}
    y = low_bit_linear(x, pack_codes(codes, bits), scale, **options)
    error = float((y - x @ w.T).norm() / (x @ w.T).norm())
    # Mean square errors of the grids: .0115429 and 8.76862e-5 of the variance, once for each operand.
    assert error == pytest.approx(math.sqrt(2 * {4: 0.0115429, 8: 8.76862e-5}[bits]), rel=0.15)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("bits", WEIGHTS)
def test_native_integers_are_exact(use_build, layer, grid, bits, build):
    """With scales of one the output is the unit times the sum, which float32 tells from its neighbours."""
    use_build(cpu, build)
    for k, block, rows in ((8, 8, 1), (24, 8, 3), (136, 8, 5), (640, 128, 37), (1544, 8, 6)):
        weights = layer(bits, rows, k)
        for activation, tokens in product(INPUTS, (1, 2, 3, 4, 5, 17, 40)):
            x = torch.randn(tokens, k, generator=torch.Generator().manual_seed(tokens))
            sums, _ = weights.exact(x, activation, block)
            _, unit = quantize_rows(hadamard.by_steps(x, block), grid(activation))
            options = weights.options(activation, block)
            y = cpu.linear(x, weights.packed, torch.ones(rows), None, weights.row_sums, **options)
            whole = torch.round(y.double() / unit.double()[:, None])
            assert torch.equal(whole.long(), sums), (k, activation, tokens)


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("bits", WEIGHTS)
def test_floats_to_a_millionth(layer, bits, dtype, backend):
    skip_unless_served(backend)
    # Whole numbers have exact transforms, so that no backend rounds a token otherwise than the reference.
    for shape, k, block in (((3,), 64, 16), ((2, 9), 320, 64), ((40,), 136, 8), ((), 64, 64)):
        weights = layer(bits, 21, k)
        x = torch.randint(-9, 10, (*shape, k), generator=torch.Generator().manual_seed(3)).to(dtype)
        for activation in INPUTS:
            _, exact = weights.exact(x, activation, block)
            options = weights.options(activation, block)
            for sums in (weights.row_sums, None):
                y = low_bit_linear(
                    x, weights.packed, weights.scale, weights.bias, row_sums=sums, backend=backend, **options
                )
                assert y.dtype == dtype
                assert y.shape == (*shape, 21)
                assert close(y, exact, TOLERANCE[dtype]), (shape, activation)


@pytest.mark.parametrize("build", ["native", "AVX2 with int8 dot products", "x86-64"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_backends_agree_to_the_bit(use_build, layer, dtype, build):
    """Also in what follows the sums: a last bit would make the next layer round a token otherwise."""
    use_build(cpu, build)
    for bits, k, tokens in product(("ternary", 4, 8), (128, 520), (1, 3, 33)):
        weights = layer(bits, 67, k)
        x = torch.randint(-9, 10, (tokens, k), generator=torch.Generator().manual_seed(8)).to(dtype)
        for activation in (4, 8):
            call = (x, weights.packed, weights.scale, weights.bias)
            options = weights.options(activation, 4)
            expected = reference.linear(*call, **options)
            assert torch.equal(cpu.linear(*call, weights.row_sums, **options), expected)
            assert torch.equal(pure.linear(*call, **options), expected)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("bits", WEIGHTS)
def test_tokens_that_are_not_rounded(use_build, layer, bits, build):
    use_build(cpu, build)
    for dtype, tolerance in ((torch.float32, 2e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
        for tokens in (1, 4, 9, 32, 33):
            weights = layer(bits, 13, 264)
            x = torch.randn(tokens, 264, generator=torch.Generator().manual_seed(4)).to(dtype)
            options = weights.options(None, 8)
            expected = reference.linear(x.float(), weights.packed, weights.scale, weights.bias, **options)
            y = cpu.linear(x, weights.packed, weights.scale, weights.bias, weights.row_sums, **options)
            assert close(y, expected.double(), tolerance), (dtype, tokens)


@pytest.mark.parametrize("backend", ["reference", "torch", "native"])
def test_a_table_of_levels(layer, backend):
    """Any integers of at most 8 bits of distance: uneven ones, falling ones, all alike."""
    skip_unless_served(backend)
    generator = torch.Generator().manual_seed(5)
    tables = [
        torch.tensor([-128, -60, -3, 0, 1, 9, 77, 127], dtype=torch.int8),
        torch.tensor([7, 5, 3, 1, -1, -3, -5, -7], dtype=torch.int8),
        torch.tensor([-255, 255, -85, 85], dtype=torch.int16),
        torch.tensor([4], dtype=torch.int16),
        torch.randint(-128, 128, (256,), generator=generator).to(torch.int16),
    ]
    for levels in tables:
        bits = max(1, (len(levels) - 1).bit_length())
        codes = torch.randint(0, len(levels), (10, 200), generator=generator).to(torch.uint8)
        packed, scale = pack_codes(codes, bits), torch.ones(10)
        x = torch.randint(-9, 10, (6, 200), generator=generator).float()
        for activation in (ActivationGrid(8, 3.9), ActivationGrid(3, 2.0), None):
            options = {"levels": levels, "bits": bits, "activation": activation, "block": 4}
            expected = reference.linear(x, packed, scale, None, **options).double()
            assert close(low_bit_linear(x, packed, scale, backend=backend, **options), expected, 1e-6)


@pytest.mark.parametrize("k", [2**15 + 8, 2**16])
def test_sums_beyond_32_bits(grid, k):
    """The largest levels of both operands throughout: the sum of products passes 2^31."""
    skip_unless_served("native")
    codes = torch.full((3, k), 255, dtype=torch.uint8)
    codes[1] = 0
    packed, levels = pack_codes(codes, 8), integer_levels(8)
    x = torch.ones(6, k)  # at a bound below their size, all entries take the largest level
    for tokens in (1, 6):
        y = low_bit_linear(
            x[:tokens],
            packed,
            torch.ones(3),
            levels=levels,
            bits=8,
            activation=ActivationGrid(8, 0.5),
            block=1,
        )
        expected = 255.0 * k * 0.5 * torch.tensor([1.0, -1.0, 1.0])
        torch.testing.assert_close(y, expected.expand(tokens, 3), rtol=1e-6, atol=0)


def test_longer_rows_go_to_torch(grid):
    k = 2**16 + 8
    codes = torch.randint(0, 4, (2, k), dtype=torch.uint8)
    options = {"levels": integer_levels(2), "bits": 2, "activation": grid(2), "block": 8}
    x = torch.randint(-9, 10, (1, k)).float()
    y = low_bit_linear(x, pack_codes(codes, 2), torch.ones(2), **options)
    assert close(y, reference.linear(x, pack_codes(codes, 2), torch.ones(2), None, **options).double(), 1e-6)


@pytest.mark.parametrize("backend", ["reference", "torch", "native"])
def test_a_row_of_zeros(layer, backend):
    skip_unless_served(backend)
    weights = layer(4, 6, 64)
    for activation in INPUTS:
        options = weights.options(activation, 64)
        y = low_bit_linear(
            torch.zeros(1, 64),
            weights.packed,
            weights.scale,
            row_sums=weights.row_sums,
            backend=backend,
            **options,
        )
        largest = integer_levels(activation).max()
        level = 0 if activation in ("ternary", "fp4") else -1  # next below zero
        expected = level * 1e-8 / largest * weights.scale * weights.row_sums
        torch.testing.assert_close(y[0], expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("backend", ["reference", "torch", "native"])
def test_any_strides_and_no_tokens(layer, backend):
    skip_unless_served(backend)
    weights = layer(3, 9, 96)
    options = weights.options(4, 32) | {"backend": backend}
    x = torch.randint(-9, 10, (6, 5, 96), generator=torch.Generator().manual_seed(6)).float()
    wide = torch.stack((x, x), -1).flatten(-2)
    packed = torch.stack((weights.packed, weights.packed), 1).flatten(0, 1)[::2]
    for strided in (x.transpose(0, 1), x[::2], wide[..., ::2], x[:1].expand(4, 5, 96)):
        y = low_bit_linear(strided, packed, weights.scale.repeat_interleave(2)[::2], **options)
        expected = low_bit_linear(strided.contiguous(), weights.packed, weights.scale, **options)
        assert torch.equal(y, expected)
        assert y.is_contiguous()
    for empty in (x[:0], x[:, :0], x[0, :0]):
        assert low_bit_linear(empty, weights.packed, weights.scale, **options).shape == (*empty.shape[:-1], 9)


def test_threads_and_blocks_of_tokens_do_not_show(layer):
    """More tokens than are taken at once, more rows than a panel, on all threads: as one token at a time."""
    skip_unless_served("native")
    weights = layer(4, 300, 4096)
    x = torch.randn(300, 4096, generator=torch.Generator().manual_seed(7))
    for activation in (4, 8):
        options = weights.options(activation, 128) | {"row_sums": weights.row_sums}
        together = low_bit_linear(x, weights.packed, weights.scale, weights.bias, **options)
        single = [low_bit_linear(row, weights.packed, weights.scale, weights.bias, **options) for row in x]
        assert torch.equal(together, torch.stack(single))


def test_weights_are_read_as_they_are_packed(layer):
    """`level_sums` and the product agree about the last byte of a row, whatever lies beyond its last code."""
    weights = layer(3, 4, 41)
    packed = weights.packed.clone()
    packed[:, -1] |= 0xF8
    assert torch.equal(level_sums(packed, weights.levels, bits=3, k=41), weights.row_sums)
    x = torch.randint(-9, 10, (3, 41)).float()
    options = weights.options(8, 1)
    for backend in ("reference", "torch", "native"):
        skip_unless_served(backend)
        y = low_bit_linear(x, packed, weights.scale, backend=backend, **options)
        assert torch.equal(y, low_bit_linear(x, weights.packed, weights.scale, backend=backend, **options))
