"""The Triton kernel against the recursion: interpreted on a CPU here, compiled where there is a GPU.

Triton decides when a kernel is defined whether to interpret it, so the interpreted tests run in a process
of their own that has TRITON_INTERPRET set from the start.
"""

import os

import pytest
import torch

from hexad.core.errors import InputError
from hexad.kernels.hadamard_transform import hadamard_transform, pure

triton = pytest.importorskip("triton")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICES = ["cpu"] if INTERPRETED else [pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.skipif(INTERPRETED, reason="is the process that it would start")
def test_under_the_interpreter(run_interpreted):
    run_interpreted(__file__)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter takes CPU tensors")
def test_cpu_tensors_are_refused_without_the_interpreter():
    with pytest.raises(InputError, match="'triton' cannot run this call: it needs CUDA tensors"):
        hadamard_transform(torch.ones(4), 4, backend="triton")


@pytest.mark.skipif(INTERPRETED, reason="an interpreted kernel has nothing to compile")
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_compiles_to_machine_code_without_a_gpu(tmp_path, monkeypatch, capability, dtype):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from hexad.kernels.hadamard_transform.triton import _transform_kernel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    constants = {"STEPS": 7, "SPAN": 2048}
    types = {"x_ptr": f"*{dtype}", "y_ptr": f"*{dtype}", "entries": "i32", "factor": "fp32"}
    signature = types | dict.fromkeys(constants, "constexpr")
    source = ASTSource(_transform_kernel, signature, constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
    assert len(compiled.asm["cubin"]) > 5_000


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("shape", "block"), [((3, 8), 8), ((5, 128), 128), ((2, 3, 96), 32), ((1, 4096), 4096), ((2, 5), 1)]
)
def test_equals_the_recursion(shape, block, dtype, device):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    y = hadamard_transform(x.to(device), block, backend="triton").cpu()
    # The same sums in the same order; the interpreter cuts bfloat16 off where it should round.
    tolerance = 4e-2 if INTERPRETED and dtype == torch.bfloat16 else 0
    torch.testing.assert_close(y, pure.by_steps(x, block), atol=tolerance, rtol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_strides_no_rows_and_large_blocks(device):
    x = torch.randn(4, 3, 32, device=device)
    y = hadamard_transform(x.transpose(0, 1), 16, backend="triton")
    assert torch.equal(y, hadamard_transform(x, 16, backend="triton").transpose(0, 1))
    assert hadamard_transform(x[:0], 16, backend="triton").shape == (0, 3, 32)
    with pytest.raises(InputError, match="it takes blocks of at most 16384"):
        hadamard_transform(torch.ones(2**15, device=device), 2**15, backend="triton")
