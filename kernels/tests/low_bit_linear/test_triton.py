"""The Triton kernel against sums of whole numbers: interpreted on a CPU here, compiled where there is a GPU.

Triton decides when a kernel is defined whether to interpret it, so the interpreted tests run in a process
of their own that has TRITON_INTERPRET set from the start.
"""

import os
import re

import pytest
import torch

from hexad.core.errors import InputError
from hexad.kernels.low_bit_linear import low_bit_linear, reference

triton = pytest.importorskip("triton")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICES = ["cpu"] if INTERPRETED else [pytest.param("cuda", marks=pytest.mark.gpu)]
WEIGHTS = [*range(1, 9), "ternary", "fp4"]


@pytest.mark.skipif(INTERPRETED, reason="is the process that it would start")
def test_under_the_interpreter(run_interpreted):
    run_interpreted(__file__)


@pytest.mark.skipif(INTERPRETED, reason="an interpreted kernel has nothing to compile")
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(
    ("bits", "lookup", "rounded"), [(4, False, True), (4, True, True), (3, False, True), (4, False, False)]
)
def test_compiles_to_machine_code_without_a_gpu(tmp_path, monkeypatch, capability, bits, lookup, rounded):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from hexad.kernels.low_bit_linear.triton import _product_kernel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    constants = {"BITS": bits, "PLANES": 2 if bits == 4 else 1, "CROSSING": bits == 3, "LEVELS": 2**bits}
    constants |= {"LOOKUP": lookup, "ROUNDED": rounded, "BIAS": True}
    constants |= {"TILE_TOKENS": 64, "TILE_ROWS": 64, "TILE_BYTES": 64}
    types = {
        "x_ptr": "*i8" if rounded else "*bf16",
        "y_ptr": "*bf16",
        "packed_ptr": "*u8",
        "token_sum_ptr": "*i64",
    }
    types |= dict.fromkeys(("unit_ptr", "scale_ptr", "bias_ptr"), "*fp32")
    types |= dict.fromkeys(("row_sum_ptr", "table_ptr"), "*i32") | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "i32") for name in _product_kernel.arg_names}
    source = ASTSource(_product_kernel, signature, constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
    assert len(compiled.asm["cubin"]) > 5_000
    # Whole numbers go to the integer tensor cores.
    assert bool(re.search(r"mma\S*\.s8", compiled.asm["ptx"])) == rounded


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bits", WEIGHTS)
def test_equals_sums_of_whole_numbers(layer, bits, device):
    # Whole numbers have exact transforms, so that tokens are rounded as they are on a CPU.
    for tokens, k, rows, block in ((1, 8, 3, 8), (3, 640, 70, 16), (17, 136, 5, 8)):
        weights = layer(bits, rows, k)
        x = torch.randint(-9, 10, (tokens, k), generator=torch.Generator().manual_seed(0)).float()
        for activation in (1, 4, 8, "ternary", "fp4"):
            _, exact = weights.exact(x, activation, block)
            options = weights.options(activation, block)
            arguments = (t.to(device) for t in (x, weights.packed, weights.scale, weights.bias))
            y = low_bit_linear(*arguments, row_sums=weights.row_sums.to(device), backend="triton", **options)
            largest = exact.abs().amax(-1, keepdim=True)
            assert ((y.cpu().double() - exact).abs() <= 5e-7 * largest).all(), (tokens, activation)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_tokens_that_are_not_rounded(layer, dtype, device):
    for bits in (3, 4, 8, "fp4"):
        weights = layer(bits, 20, 128)
        x = torch.randn(2, 3, 128, generator=torch.Generator().manual_seed(1)).to(dtype)
        options = weights.options(None, 32)
        expected = reference.linear(x, weights.packed, weights.scale, None, **options)
        y = low_bit_linear(
            x.to(device), weights.packed.to(device), weights.scale.to(device), backend="triton", **options
        )
        # Float32 sums of 128 terms; the others round the transformed tokens and the result.
        tolerance = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
        assert (y.cpu() - expected).abs().max() <= tolerance * expected.abs().max(), bits


@pytest.mark.parametrize("device", DEVICES)
def test_no_tokens_and_bad_ones(layer, device):
    weights = layer(4, 20, 64)
    packed, scale = weights.packed.to(device), weights.scale.to(device)
    options = weights.options(8, 16) | {"backend": "triton"}
    assert low_bit_linear(torch.ones(2, 0, 64, device=device), packed, scale, **options).shape == (2, 0, 20)
    x = torch.full((1, 64), float("nan"), device=device)
    with pytest.raises(InputError, match="holds NaN or infinity"):
        low_bit_linear(x, packed, scale, **options)
