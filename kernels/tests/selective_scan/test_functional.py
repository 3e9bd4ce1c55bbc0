"""The public function: what it refuses, and how it takes part in autograd and torch.compile."""

import os
import subprocess
import sys
import types

import pytest
import torch

from hexad.core.errors import InputError
from hexad.kernels.selective_scan import available_backends, backends, functional, op, selective_scan

BACKENDS = [
    pytest.param(
        name, marks=pytest.mark.skipif(available_backends("cpu")[name] is not None, reason="not here")
    )
    for name in ("reference", "torch", "native")
]
NAN = float("nan")


def call(make, **changes):
    """A scan of 2 samples, 6 channels, 5 steps and 4 states with every tensor, but for the changes."""
    return selective_scan(**(make(2, 6, 5, 4) | {"delta_softplus": True} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"u": [[1.0]]}, "u must be a tensor, got list"),
        ({"u": torch.ones(2, 6)}, r"u must be \(batch, channels, steps\), got shape \(2, 6\)"),
        ({"u": torch.ones(2, 6, 0)}, r"u has shape \(2, 6, 0\): it needs at least one channel and one step"),
        ({"u": torch.ones(2, 6, 5, dtype=torch.int32)}, "u has dtype torch.int32; give float32, bfloat16"),
        ({"u": torch.ones(2, 6, 5).to_sparse()}, "u is a sparse_coo tensor; give a dense"),
        ({"u": torch.ones(2, 6, 5, device="meta")}, "u is on meta, delta on cpu; move one of them"),
        (
            {"delta": torch.ones(2, 6, 4)},
            r"delta has shape \(2, 6, 4\), but u of shape \(2, 6, 5\) and A of shape \(6, 4\) ask for "
            r"\(batch, channels, steps\) = \(2, 6, 5\)",
        ),
        (
            {"A": -torch.ones(5, 4)},
            r"A must be \(channels, states\) with the 6 channels of u .* got .*\(5, 4\)",
        ),
        ({"A": -torch.ones(6, 0)}, "A must be .* at least one state"),
        ({"A": -torch.ones(6)}, "A must be .* got shape"),
        (
            {"A": -torch.ones(6, 4, dtype=torch.complex64)},
            r"A has dtype torch.complex64.*complex states are not",
        ),
        (
            {"B": torch.ones(2, 4, 6)},
            r"B has shape \(2, 4, 6\), but u .* ask for \(batch, states, steps\) = ",
        ),
        ({"B": torch.ones(2, 4, 10)}, r"B has shape \(2, 4, 10\), but u"),
        (
            {"B": torch.ones(4, 6)},
            r"B has shape \(4, 6\), but .* or constant \(channels, states\) = \(6, 4\)",
        ),
        ({"C": torch.ones(2, 2, 3, 5)}, r"C has shape \(2, 2, 3, 5\), but"),
        ({"C": torch.ones(6)}, r"C has shape \(6,\), but"),
        ({"B": torch.ones(2, 4, 4, 5)}, "B has 4 groups, which do not divide the 6 channels of u"),
        ({"B": torch.ones(2, 0, 4, 5)}, "B has 0 groups, which do not divide"),
        ({"B": torch.ones(2, 3, 4, 5)}, "B has 3 groups, C has 1; they must have as many"),
        ({"D": torch.ones(6, 1)}, r"D has shape \(6, 1\), but .* ask for \(channels,\) = \(6,\)"),
        ({"z": torch.ones(2, 5, 6)}, r"z has shape \(2, 5, 6\), but"),
        ({"delta_bias": torch.ones(4)}, r"delta_bias has shape \(4,\), but"),
        (
            {"initial_state": torch.ones(2, 4, 6)},
            r"initial_state has shape \(2, 4, 6\), but .* = \(2, 6, 4\)",
        ),
        ({"delta_softplus": 1}, "delta_softplus must be True or False, got 1"),
        ({"return_last_state": "yes"}, "return_last_state must be True or False, got 'yes'"),
        (
            {"backend": "cuda"},
            "backend must be one of auto, reference, torch, native, triton, mamba_ssm, got",
        ),
        ({"backend": "mamba_ssm"}, "backend 'mamba_ssm' cannot run this call: mamba_ssm is not installed"),
    ],
)
def test_bad_input_is_named(make, changes, message):
    with pytest.raises(InputError, match=message):
        call(make, **changes)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_and_growing_states_are_refused(make, backend):
    # The last entry of each, where a loop over whole vectors might not look.
    for name, x in make(2, 19, 17, 5).items():
        broken = make(2, 19, 17, 5)
        broken[name] = x.clone()
        broken[name].view(-1)[-1] = NAN
        message = (
            "A holds nan at channel 18, state 4" if name == "A" else f"{name} holds NaN; look for the layer"
        )
        with pytest.raises(InputError, match=message):
            selective_scan(**broken, backend=backend)
    rates = -torch.ones(6, 4)
    rates[3, 2] = 0.5
    with pytest.raises(InputError, match=r"A holds 0.5 at channel 3, state 2; no entry may be positive"):
        call(make, A=rates, backend=backend)
    for constant in ("B", "C"):
        broken = make(1, 3, 2, 4, constant="BC")
        broken[constant][2, 3] = NAN
        with pytest.raises(InputError, match=f"{constant} holds NaN"):
            selective_scan(**broken, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_infinite_gradients_pass_through(make, dtype, backend):
    """A gradient scaler looks for them."""
    inputs = make(1, 2, 3, 2, dtype=dtype)
    u = inputs["u"].requires_grad_()
    y = selective_scan(**inputs, backend=backend)
    for value in (float("inf"), NAN):
        outer = torch.ones_like(y)
        outer[0, 0, 1] = value
        (grad,) = torch.autograd.grad(y, u, outer, retain_graph=True)
        assert not grad[0, 0, :2].isfinite().any()
        assert grad[0, 1].isfinite().all()


@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize("options", [{}, {"groups": 2, "constant": "C"}, {"constant": "B"}], ids=str)
def test_gradient_by_finite_differences(make, options, backend):
    """Of every tensor, through output and last state, over more than one chunk."""
    inputs = make(1, 2, 18, 2, dtype=torch.float64, **options)
    inputs["A"] -= 0.01
    names = list(inputs)

    def scan(*tensors):
        named = dict(zip(names, tensors, strict=True))
        return selective_scan(**named, delta_softplus=True, return_last_state=True, backend=backend)

    assert torch.autograd.gradcheck(scan, [x.requires_grad_() for x in inputs.values()])


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_of_the_last_state_alone_and_of_some_tensors(make, both_ways, backend):
    inputs = make(2, 3, 20, 4)
    inputs["B"].requires_grad_()
    _, last = selective_scan(**inputs, delta_softplus=True, return_last_state=True, backend=backend)
    last.sum().backward()
    wide = {name: x.detach().double() for name, x in inputs.items()}
    wide["B"].requires_grad_()
    _, exact = selective_scan(**wide, delta_softplus=True, return_last_state=True, backend="reference")
    exact.sum().backward()
    torch.testing.assert_close(inputs["B"].grad.double(), wide["B"].grad, rtol=1e-5, atol=1e-6)
    assert inputs["u"].grad is None


def test_every_position_of_mamba_ssm(make):
    inputs = make(2, 6, 5, 4) | {"initial_state": None}
    tensors = [inputs[name] for name in ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")]
    y, last = selective_scan(*tensors, True, True)
    named, same = call(make, initial_state=None, return_last_state=True)
    assert torch.equal(y, named)
    assert torch.equal(last, same)
    assert last.shape == (2, 6, 4)
    assert isinstance(selective_scan(*tensors), torch.Tensor)


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_opcheck(make, backend):
    for sizes, left_out, keep in (
        ((2, 3, 20, 4), (), True),
        ((1, 2, 5, 1), ("D", "z", "delta_bias", "initial_state"), False),
    ):
        inputs = make(*sizes) | dict.fromkeys(left_out)
        if "initial_state" not in left_out:
            inputs["initial_state"] = inputs["initial_state"].mT
        order = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "initial_state")
        tensors = [inputs[name] for name in order]
        for learns in (True, False):
            leaves = [x if x is None else x.detach().clone().requires_grad_(learns) for x in tensors]
            results = torch.library.opcheck(op.selective_scan, (*leaves, True, keep, backend))
            assert set(results.values()) == {"SUCCESS"}
        y, last, kept = op.selective_scan(*tensors, True, keep, backend)
        arguments = (torch.ones_like(y), torch.ones_like(last), *tensors, kept, True, backend)
        results = torch.library.opcheck(op.selective_scan_backward, arguments)
        assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiles_whole_with_its_gradient(make, compiler):
    def loss(**inputs):
        y, last = call(make=lambda *_: inputs, return_last_state=True)
        return (y.relu() ** 2).sum() + last.sin().sum()

    def gradients(function):
        inputs = {name: x.requires_grad_() for name, x in make(2, 6, 20, 4).items()}
        return torch.autograd.grad(function(**inputs), list(inputs.values()))

    compiled = torch.compile(loss, fullgraph=True, backend=compiler)
    for found, expected in zip(gradients(compiled), gradients(loss), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_compiles_once_for_any_batch_and_length(make):
    compilations = []

    def count(graph, _):
        compilations.append(graph)
        return graph

    compiled = torch.compile(selective_scan, fullgraph=True, backend=count)
    for batch, steps in ((2, 20), (3, 41), (5, 7)):
        inputs = make(batch, 6, steps, 4)
        for name, x in inputs.items():
            if x.dim() > 2:
                torch._dynamo.mark_dynamic(x, 0)
                if name != "initial_state":
                    torch._dynamo.mark_dynamic(x, x.dim() - 1)
        inputs["delta_softplus"] = True
        torch.testing.assert_close(compiled(**inputs), selective_scan(**inputs))
    assert len(compilations) == 1


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_a_second_derivative_is_refused(make, backend):
    inputs = make(1, 2, 5, 3)
    u = inputs["u"].requires_grad_()
    y = selective_scan(**inputs, backend=backend)
    (grad,) = torch.autograd.grad(y.square().sum(), u, create_graph=True)
    with pytest.raises(InputError, match="the selective scan has no second derivative"):
        grad.sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_under_autocast(make, backend):
    inputs = make(2, 6, 20, 4)
    with torch.autocast("cpu", torch.bfloat16):
        y = selective_scan(**inputs, delta_softplus=True, backend=backend)
    torch.testing.assert_close(y, selective_scan(**inputs, delta_softplus=True, backend="reference"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_dtypes_may_differ(make, backend):
    inputs = make(2, 6, 20, 4)
    half = inputs | {name: inputs[name].bfloat16() for name in ("u", "B", "D")}
    leaves = {name: x.requires_grad_() for name, x in half.items()}
    y, last = selective_scan(**leaves, delta_softplus=True, return_last_state=True, backend=backend)
    assert (y.dtype, last.dtype) == (torch.bfloat16, torch.float32)
    (y.sum() + last.sum()).backward()
    assert all(x.grad.dtype == x.dtype for x in leaves.values())


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_meta_tensors_have_a_shape(make, backend):
    inputs = {name: x.to("meta") for name, x in make(2, 6, 20, 4, dtype=torch.bfloat16).items()}
    y, last = selective_scan(**inputs, return_last_state=True, backend=backend)
    assert (y.shape, y.dtype, y.device.type) == ((2, 6, 20), torch.bfloat16, "meta")
    assert (last.shape, last.dtype) == ((2, 6, 4), torch.float32)


def test_states_are_kept_only_where_something_learns(make, monkeypatch):
    kept = []
    monkeypatch.setattr(
        op, "selective_scan", lambda *arguments: kept.append(arguments[-2]) or (None, None, None)
    )
    inputs = make(1, 2, 20, 3)
    selective_scan(**inputs, backend="torch")
    selective_scan(**(inputs | {"z": inputs["z"].clone().requires_grad_()}), backend="torch")
    with torch.no_grad():
        selective_scan(**(inputs | {"z": inputs["z"].clone().requires_grad_()}), backend="torch")
    assert kept == [False, True, False]


def test_mamba_ssm_is_called_with_its_own_dtypes(make, monkeypatch):
    """A stand-in for the package, which runs on GPUs alone."""
    calls = []

    def selective_scan_fn(*arguments):
        calls.append(arguments)
        return arguments[0]

    module = types.SimpleNamespace(selective_scan_fn=selective_scan_fn)
    monkeypatch.setitem(sys.modules, "mamba_ssm", types.ModuleType("mamba_ssm"))
    monkeypatch.setitem(sys.modules, "mamba_ssm.ops", types.ModuleType("mamba_ssm.ops"))
    monkeypatch.setitem(sys.modules, "mamba_ssm.ops.selective_scan_interface", module)
    monkeypatch.setattr(functional, "choose", lambda backend, *_: backend)
    inputs = make(2, 6, 5, 4, dtype=torch.bfloat16) | {"initial_state": None}
    inputs |= {"delta": inputs["delta"].float(), "D": inputs["D"].bfloat16(), "z": None}
    selective_scan(**inputs, delta_softplus=True, return_last_state=True, backend="mamba_ssm")
    *tensors, soft, last = calls[0]
    dtypes = [x if x is None else x.dtype for x in tensors]
    half, full = torch.bfloat16, torch.float32
    assert dtypes == [half, half, full, half, half, full, None, full]
    assert (soft, last) == (True, True)


def test_what_mamba_ssm_cannot_do_is_named(monkeypatch):
    monkeypatch.setattr(backends, "find_spec", lambda name: object())
    reason = backends.reason_against
    assert reason("mamba_ssm", "cuda", torch.float32) is None
    assert reason("mamba_ssm", "cpu", torch.float32) == "it needs CUDA tensors"
    assert "float64" in reason("mamba_ssm", "cuda", torch.float64)
    assert "no initial state" in reason("mamba_ssm", "cuda", torch.float32, chained=True)
    assert "at most 256 states" in reason("mamba_ssm", "cuda", torch.float32, 300)


def test_without_native_code_torch_serves():
    code = (
        "import torch\n"
        "from hexad.kernels.selective_scan import *\n"
        "from hexad.kernels.selective_scan.backends import choose\n"
        "assert choose('auto', 'cpu', torch.float32, 4, False) == 'torch'\n"
        "x = torch.ones(1, 2, 3)\n"
        "print(selective_scan(x, x, -x[0, :, :1], x[:, :1], x[:, :1]).sum().item())\n"
    )
    environment = {**os.environ, "HEXAD_NATIVE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    q = torch.exp(torch.tensor(-1.0)).item()
    assert float(done.stdout) == pytest.approx(2 * (1 + (1 + q) + (1 + q + q * q)))
