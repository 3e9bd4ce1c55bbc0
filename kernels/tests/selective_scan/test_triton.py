"""The Triton kernels against the definition: interpreted on a CPU here, compiled where there is a GPU.

Triton decides when a kernel is defined whether to interpret it, so the interpreted tests run in a process
of their own that has TRITON_INTERPRET set from the start.
"""

import os

import pytest
import torch

from hexad.core.errors import InputError
from hexad.kernels.selective_scan import selective_scan

triton = pytest.importorskip("triton")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICES = ["cpu"] if INTERPRETED else [pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.skipif(INTERPRETED, reason="is the process that it would start")
def test_under_the_interpreter(run_interpreted):
    run_interpreted(__file__)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter takes CPU tensors")
def test_cpu_tensors_are_refused_without_the_interpreter(make):
    with pytest.raises(InputError, match="'triton' cannot run this call: it needs CUDA tensors"):
        selective_scan(**make(1, 2, 3, 4), backend="triton")


@pytest.mark.skipif(INTERPRETED, reason="an interpreted kernel has nothing to compile")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["_scan_kernel", "_scan_backward_kernel"])
def test_compiles_to_machine_code_without_a_gpu(tmp_path, monkeypatch, name, dtype):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from hexad.kernels.selective_scan import triton as kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = getattr(kernels, name)
    flags = ("SOFTPLUS", "SKIP", "GATE", "BIAS", "INITIAL", "KEEP", "LAST", "CONSTANT_B", "CONSTANT_C")
    constants = {flag: not flag.startswith("CONSTANT") for flag in flags if flag in kernel.arg_names}
    constants |= {"STEPS": 16, "CHANNELS": 32, "STATES": 16}
    moving = ("u", "delta", "z", "b", "c", "y", "outer", "grad_u", "grad_delta", "grad_z")
    types = {
        arg: f"*{dtype if arg.removesuffix('_ptr') in moving else 'fp32'}"
        for arg in kernel.arg_names
        if arg.endswith("_ptr")
    }
    types |= dict.fromkeys(constants, "constexpr")
    signature = {arg: types.get(arg, "i32") for arg in kernel.arg_names}
    source = ASTSource(kernel, signature, constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    assert len(compiled.asm["cubin"]) > 5_000


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((1, 1, 1, 1), {}),
        ((2, 6, 19, 3), {"groups": 2}),
        ((1, 5, 17, 2), {"constant": "B"}),
        ((1, 4, 2, 4), {"constant": "BC", "groups": 2}),
        ((1, 40, 5, 20), {}),
    ],
    ids=str,
)
def test_equals_the_definition_both_ways(make, both_ways, sizes, options, device):
    inputs = make(*sizes, **options)
    on_device = {name: x.to(device) for name, x in inputs.items()}
    found = both_ways(on_device, delta_softplus=True, backend="triton")
    exact = both_ways(
        {name: x.double() for name, x in inputs.items()}, delta_softplus=True, backend="reference"
    )
    for name, x in found.items():
        assert (x.cpu() - exact[name]).abs().max() <= 2e-6 * exact[name].abs().max(), name


@pytest.mark.parametrize("device", DEVICES)
def test_without_what_may_be_left_out(make, both_ways, device):
    inputs = make(2, 3, 18, 4) | dict.fromkeys(("D", "z", "delta_bias", "initial_state"))
    inputs["delta"] = inputs["delta"].abs()
    on_device = {name: x if x is None else x.to(device).mT.contiguous().mT for name, x in inputs.items()}
    found = both_ways(on_device, backend="triton")
    exact = both_ways(inputs, backend="reference")
    for name, x in found.items():
        assert (x.cpu() - exact[name]).abs().max() <= 2e-6 * exact[name].abs().max(), name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_and_extremes(make, both_ways, dtype, device):
    inputs = make(1, 4, 9, 4, dtype=dtype)
    inputs["delta"][0, 0, :4] = torch.tensor([60.0, -60.0, 0.0, 1000.0])
    on_device = {name: x.to(device) for name, x in inputs.items()}
    found = both_ways(on_device, delta_softplus=True, backend="triton")
    exact = both_ways(
        {name: x.double() for name, x in inputs.items()}, delta_softplus=True, backend="reference"
    )
    # One rounding of the result; the interpreter cuts bfloat16 off where it should round.
    tolerance = {torch.float16: 1e-3, torch.bfloat16: 1e-2}[dtype]
    for name, x in found.items():
        assert (x.cpu() - exact[name]).abs().max() <= tolerance * exact[name].abs().max(), name
