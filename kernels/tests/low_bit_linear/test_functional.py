"""The public function: what it refuses, and how it takes part in torch.compile."""

import os
import subprocess
import sys

import pytest
import torch

from hexad.core.errors import InputError
from hexad.kernels.low_bit_linear import (
    ActivationGrid,
    available_backends,
    integer_levels,
    low_bit_linear,
    op,
    pack_codes,
)

BACKENDS = [
    pytest.param(
        name, marks=pytest.mark.skipif(available_backends("cpu")[name] is not None, reason="not here")
    )
    for name in ("reference", "torch", "native")
]

PACKED = pack_codes(torch.arange(5 * 64).view(5, 64).remainder(16).to(torch.uint8), 4)


def call(x=None, backend="auto", **changes):
    """A layer of 5 rows and 64 columns in 4 bits, but for the changes."""
    arguments = {
        "packed": PACKED,
        "scale": torch.ones(5),
        "levels": integer_levels(4),
        "bits": 4,
        "activation": ActivationGrid(8, 3.9),
        "block": 32,
        "backend": backend,
    }
    return low_bit_linear(torch.ones(3, 64) if x is None else x, **(arguments | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": [[1.0]]}, "x must be a tensor, got list"),
        ({"x": torch.ones(3, 64, dtype=torch.int32)}, "x has dtype torch.int32"),
        (
            {"x": torch.ones(3, 64, dtype=torch.float64)},
            "x has dtype torch.float64; give float32, bfloat16 or",
        ),
        ({"x": torch.ones(3, 64).to_sparse()}, "x is a sparse_coo tensor; give a dense"),
        ({"x": torch.ones(())}, "its last dimension must hold numbers"),
        ({"x": torch.ones(3, 96)}, "packed has rows of 32 bytes, but 96 codes of 4 bits take 48"),
        ({"x": torch.ones(3, 64, device="meta")}, "x is on meta, packed on cpu; move one of them"),
        ({"packed": torch.ones(5, 32)}, "packed must be a uint8 matrix that is not empty, got torch.float32"),
        ({"packed": torch.ones(0, 32, dtype=torch.uint8)}, "packed must be a uint8 matrix that is not empty"),
        ({"packed": torch.ones(160, dtype=torch.uint8)}, "packed must be a uint8 matrix"),
        ({"packed": None}, "packed must be a tensor, got NoneType"),
        ({"bits": 3}, "packed has rows of 32 bytes, but 64 codes of 3 bits take 24"),
        ({"bits": 9}, "bits must be a whole number from 1 to 8, got 9"),
        ({"bits": "fp4"}, "bits must be a whole number from 1 to 8, got 'fp4'"),
        ({"block": 48}, "block must be a power of two, got 48"),
        ({"block": 128}, "block 128 does not divide the 64 entries"),
        ({"scale": torch.ones(4)}, "scale must hold one number for each of the 5 rows"),
        ({"scale": 1.0}, "scale must hold one number for each of the 5 rows of packed, got float"),
        ({"scale": torch.ones(5).double()}, "scale must be float32, got torch.float64"),
        ({"bias": torch.ones(5, 1)}, "bias must hold one number for each"),
        ({"bias": torch.ones(5, dtype=torch.int64)}, "bias must be float32 or bfloat16 or"),
        ({"row_sums": torch.ones(5)}, "row_sums must be int32, got torch.float32"),
        ({"row_sums": torch.ones(6, dtype=torch.int32)}, "row_sums must hold one number for each"),
        ({"levels": [1, 2]}, "levels must be an int8 or int16 vector, got"),
        ({"levels": torch.ones(16)}, "levels must be an int8 or int16 vector, got torch.float32"),
        ({"levels": torch.ones(17, dtype=torch.int8)}, "levels has 17 entries; codes of 4 bits have 1 to 16"),
        ({"levels": torch.ones(0, dtype=torch.int8)}, "levels has 0 entries"),
        ({"activation": 4}, "activation must be an ActivationGrid or None, got 4"),
        ({"backend": "cuda"}, "backend must be one of auto, reference, torch, native, triton, got 'cuda'"),
    ],
)
def test_bad_input_is_named(changes, message):
    with pytest.raises(InputError, match=message):
        call(**changes)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"levels": torch.arange(15, dtype=torch.int8)}, "code 15 at row 0, column 15 stands for no level"),
        (
            {"levels": torch.arange(0, 256 * 16, 256).to(torch.int16)},
            r"levels must lie in \[-255, 255\], got 3840",
        ),
        (
            {"levels": torch.tensor([-255, -254, *[255] * 14]).to(torch.int16)},
            "levels lie too far apart for 8 bits",
        ),
    ],
)
def test_bad_numbers_are_named(changes, message, backend):
    with pytest.raises(InputError, match=message):
        call(**changes, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("activation", [ActivationGrid(4, 2.5), None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_nan_and_infinity_are_refused(dtype, activation, backend):
    for tokens in (1, 3, 40):
        for value in (float("nan"), float("inf"), float("-inf")):
            x = torch.ones(tokens, 64, dtype=dtype)
            x[-1, 50] = value
            with pytest.raises(InputError, match="x or its Hadamard transform holds NaN or infinity"):
                call(x, activation=activation, backend=backend)
    # Finite numbers whose sum is not.
    if dtype != torch.float16:
        with pytest.raises(InputError, match="holds NaN or infinity"):
            call(torch.full((1, 64), torch.finfo(dtype).max, dtype=dtype), backend=backend)


def test_gradients_are_refused():
    for changes in (
        {"x": torch.ones(3, 64, requires_grad=True)},
        {"scale": torch.ones(5, requires_grad=True)},
    ):
        with pytest.raises(
            InputError, match=r"for inference and computes no gradient: call it under torch.no_grad"
        ):
            call(**changes)
        with torch.no_grad():
            assert not call(**changes).requires_grad


@pytest.mark.parametrize("backend", BACKENDS)
def test_opcheck(backend):
    codes = torch.randint(0, 8, (5, 64), dtype=torch.uint8)
    packed, levels = pack_codes(codes, 3), integer_levels(3)
    sums = levels.long()[codes.long()].sum(-1).int()
    for x, bias, row_sums, grid in (
        (torch.randn(2, 3, 64), torch.ones(5), sums, 8),
        (torch.randn(64), None, None, 0),
        (torch.randn(20, 64, dtype=torch.bfloat16), None, sums, 10),
    ):
        arguments = (x, packed, torch.ones(5), bias, levels, row_sums, 3, grid, 2.0, 16, backend)
        results = torch.library.opcheck(op.low_bit_linear, arguments)
        assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiles_whole(compiler):
    def layer(x):
        return call(2 * x, activation=ActivationGrid("ternary", 1.2)).relu()

    x = torch.randn(7, 64)
    compiled = torch.compile(layer, fullgraph=True, backend=compiler)
    torch.testing.assert_close(compiled(x), layer(x), atol=1e-6, rtol=0)


def test_compiles_once_for_any_number_of_tokens():
    compilations = []

    def count(graph, _):
        compilations.append(graph)
        return graph

    compiled = torch.compile(call, fullgraph=True, backend=count)
    for tokens in (3, 7, 40):
        x = torch.randn(tokens, 64)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), call(x))
    assert len(compilations) == 1


def test_under_autocast():
    x = torch.randint(-9, 10, (20, 64)).float()
    for backend in ("reference", "torch", "native"):
        if available_backends("cpu")[backend] is None:
            for activation in (ActivationGrid(4, 2.5), None):
                with torch.autocast("cpu", torch.bfloat16):
                    y = call(x, activation=activation, backend=backend)
                torch.testing.assert_close(
                    y, call(x, activation=activation, backend="reference"), rtol=1e-5, atol=1e-4
                )


def test_meta_tensors_have_a_shape():
    codes = torch.empty(5, 32, dtype=torch.uint8, device="meta")
    y = call(torch.empty(2, 3, 64, device="meta"), packed=codes, scale=torch.ones(5, device="meta"))
    assert (y.shape, y.device.type) == ((2, 3, 5), "meta")


def test_without_native_code_torch_serves():
    code = (
        "import torch\n"
        "from hexad.kernels.low_bit_linear import *\n"
        "from hexad.kernels.low_bit_linear.backends import choose\n"
        "assert choose('auto', 'cpu', 64, 8) == 'torch'\n"
        "packed = pack_codes(torch.ones(2, 64, dtype=torch.uint8), 2)\n"
        "options = dict(levels=integer_levels(2), bits=2, activation=ActivationGrid(8, 3.9), block=8)\n"
        "print(low_bit_linear(torch.ones(1, 64), packed, torch.ones(2), **options).tolist())\n"
    )
    environment = {**os.environ, "HEXAD_NATIVE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    packed = pack_codes(torch.ones(2, 64, dtype=torch.uint8), 2)
    options = {"levels": integer_levels(2), "bits": 2, "activation": ActivationGrid(8, 3.9), "block": 8}
    expected = low_bit_linear(torch.ones(1, 64), packed, torch.ones(2), **options)
    torch.testing.assert_close(torch.tensor(eval(done.stdout)), expected)
