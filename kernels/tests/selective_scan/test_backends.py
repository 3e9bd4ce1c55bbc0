"""Every backend against the definition in float64, closed forms and the code of others."""

import os
import subprocess
import sys

import pytest
import scipy.signal
import torch
from torch.nn.functional import softplus

from hexad.core.errors import InputError
from hexad.kernels.selective_scan import available_backends, cpu, pure, selective_scan
from hexad.kernels.selective_scan.inputs import Inputs

BACKENDS = ["reference", "torch", "native"]
FAST = ["torch", "native"]
BUILDS = ["native", "x86-64-v3", "x86-64"]
# Sums of some hundred float32 terms of order one, relative to the largest entry.
FLOAT32 = 1e-6
LAYOUTS = [
    {},
    {"groups": 1},
    {"groups": 2},
    {"constant": "B"},
    {"constant": "C", "groups": 2},
    {"constant": "BC"},
]


def skip_unless_served(backend: str) -> None:
    reason = available_backends("cpu")[backend]
    if reason is not None:
        pytest.skip(reason)


def wide(inputs):
    return {name: x if x is None else x.double() for name, x in inputs.items()}


def assert_close(found, exact, tolerance=FLOAT32):
    assert found.keys() == exact.keys()
    for name, x in found.items():
        assert (x - exact[name]).abs().max() <= tolerance * exact[name].abs().max(), name


@pytest.mark.parametrize("backend", FAST)
def test_equals_the_definition_both_ways(make, both_ways, shape, backend):
    skip_unless_served(backend)
    inputs = make(*shape)
    exact = both_ways(wide(inputs), delta_softplus=True, backend="reference")
    assert_close(both_ways(inputs, delta_softplus=True, backend=backend), exact)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_layout_of_b_and_c(make, both_ways, layout, backend):
    skip_unless_served(backend)
    inputs = make(2, 34, 21, 3, **layout)
    exact = both_ways(wide(inputs), delta_softplus=True, backend="reference")
    assert_close(both_ways(inputs, delta_softplus=True, backend=backend), exact)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("left_out", ["D", "z", "delta_bias", "initial_state", "all"])
def test_without_what_may_be_left_out(make, both_ways, left_out, backend):
    """And without softplus, where steps may be negative and states grow."""
    skip_unless_served(backend)
    inputs = make(2, 5, 18, 4)
    names = ("D", "z", "delta_bias", "initial_state") if left_out == "all" else (left_out,)
    inputs |= dict.fromkeys(names)
    inputs["delta"] *= 0.3
    exact = both_ways(wide(inputs), backend="reference")
    assert_close(both_ways(inputs, backend=backend), exact, 3e-6)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_native_code_for_several_processors(use_build, make, both_ways, build, dtype):
    use_build(cpu, build)
    # The gradient that comes in is rounded to the dtype, and so is the result.
    tolerance = {torch.float32: FLOAT32, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    for sizes, options in (((2, 37, 35, 9), {}), ((1, 10, 18, 3), {"groups": 2, "constant": "B"})):
        inputs = make(*sizes, **options, dtype=dtype)
        for soft in (True, False):
            scaled = inputs if soft else inputs | {"delta": inputs["delta"].abs(), "delta_bias": None}
            exact = both_ways(wide(scaled), delta_softplus=soft, backend="reference")
            found = both_ways(scaled, delta_softplus=soft, backend="native")
            assert found["y"].dtype == found["grad of B"].dtype == dtype
            assert found["last"].dtype == found["grad of A"].dtype == torch.float32
            assert_close(found, exact, tolerance)


@pytest.mark.parametrize("build", BUILDS)
def test_extreme_steps(use_build, both_ways, build):
    """Steps from nothing to more than any state survives, each with float32's relative accuracy."""
    use_build(cpu, build)
    raw = torch.cat((torch.linspace(-85, 85, 400), torch.tensor([-1e4, -1e30, 1e4, 1e30, 0.0])))
    channels = len(raw)
    rates = torch.tensor([0.0, -1e-3, -0.5, -1.0, -16.0, -1e3])
    inputs = {
        "u": torch.ones(1, channels, 1),
        "delta": raw[None, :, None],
        "A": rates.expand(channels, -1),
        "B": torch.zeros(1, len(rates), 1),
        "C": torch.ones(1, len(rates), 1),
        "initial_state": torch.ones(1, channels, len(rates)),
    }
    _, states = selective_scan(**inputs, delta_softplus=True, return_last_state=True, backend="native")
    exponents = torch.logaddexp(raw.double(), torch.zeros(1).double())[:, None] * rates.double()
    exact = exponents.exp()
    # exp(x) of an x that was rounded to float32: half a unit of x, and some of the result.
    allowed = (4e-7 + 3e-7 * exponents.abs()) * exact + 1e-37
    assert ((states[0] - exact).abs() <= allowed).all()
    found = both_ways(
        inputs | {"delta": inputs["delta"].clamp(-80, 80)}, delta_softplus=True, backend="native"
    )
    assert all(x.isfinite().all() for x in found.values())


@pytest.mark.parametrize("build", BUILDS)
def test_softplus_and_its_slope(use_build, build):
    """One step with A = 0 and B = C = 1: y is the softplus itself, its gradient the logistic function."""
    use_build(cpu, build)
    raw = torch.cat((torch.linspace(-85, 85, 20001), torch.linspace(-1, 1, 999))).requires_grad_()
    ones = torch.ones(len(raw), 1)
    y = selective_scan(
        torch.ones(1, len(raw), 1),
        raw[None, :, None],
        0 * ones,
        ones,
        ones,
        delta_softplus=True,
        backend="native",
    )
    (slope,) = torch.autograd.grad(y.sum(), raw)
    x = raw.detach().double()
    for found, exact in ((y.flatten(), torch.logaddexp(x, 0 * x)), (slope, torch.sigmoid(x))):
        assert ((found - exact).abs() / exact).max() < 4e-7


@pytest.mark.parametrize("backend", BACKENDS)
def test_infinite_steps_and_states_that_grow(backend):
    """No softplus: positive exponents up to infinity; -infinity as a raw step is a step of nothing."""
    skip_unless_served(backend)
    exponents = torch.tensor([1.0, 50.0, 87.0, 100.0, 1e5])
    one = torch.ones(1, 1, 1)
    for exponent in exponents:
        arguments = (0 * one, -exponent * one, torch.full((1, 1), -1.0), one, one)
        _, state = selective_scan(*arguments, return_last_state=True, initial_state=one, backend=backend)
        torch.testing.assert_close(state.squeeze(), exponent.exp(), rtol=1e-5, atol=0)
    still = selective_scan(
        one, -torch.inf * one, -one[0], one, one, delta_softplus=True, initial_state=one, backend=backend
    )
    assert still.item() == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_constant_input_is_a_geometric_series(backend):
    skip_unless_served(backend)
    steps, delta, u = 50, 0.125, 2.0
    full = torch.ones(1, 1, steps)
    y = selective_scan(u * full, delta * full, torch.tensor([[-1.0]]), full, full, backend=backend)
    q = torch.exp(torch.tensor(-delta, dtype=torch.float64))
    exact = delta * u * (1 - q ** torch.arange(1, steps + 1)) / (1 - q)
    torch.testing.assert_close(y[0, 0].double(), exact, rtol=5e-7, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_constant_steps_are_a_filter(backend):
    """With delta, B and C constant every state is an AR(1) process."""
    skip_unless_served(backend)
    steps, delta = 60, 0.3
    rates, b, c = (torch.tensor([row]).double() for row in ([-0.2, -1.5], [0.7, -2.0], [1.3, 0.4]))
    u = torch.randn(1, 1, steps, generator=torch.Generator().manual_seed(0))
    y = selective_scan(u, torch.full_like(u, delta), rates.float(), b.float(), c.float(), backend=backend)
    exact = sum(
        scipy.signal.lfilter(
            [delta * b[0, n] * c[0, n]], [1, -torch.exp(delta * rates[0, n])], u[0, 0].double()
        )
        for n in range(2)
    )
    torch.testing.assert_close(y[0, 0].double(), torch.as_tensor(exact), rtol=0, atol=2e-6)


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_unrolled_kernel(make, backend):
    """y_t = sum over r <= t of C_t exp(A sum of delta) delta_r B_r u_r, in float64."""
    inputs = make(2, 3, 20, 4, dtype=torch.float64)
    delta = softplus(inputs["delta"])
    until = delta.cumsum(-1)
    gap = until[..., :, None] - until[..., None, :]  # (batch, channels, t, r)
    lower = torch.ones(20, 20, dtype=torch.bool).tril()
    decay = torch.exp(gap[..., None] * inputs["A"][:, None, None]) * lower[..., None]
    exact = torch.einsum("bdtrn,bnt,bnr,bdr->bdt", decay, inputs["C"], inputs["B"], delta * inputs["u"])
    arguments = (inputs[name] for name in ("u", "delta", "A", "B", "C"))
    y = selective_scan(*arguments, delta_softplus=True, backend=backend)
    torch.testing.assert_close(y, exact, rtol=0, atol=1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
def test_equals_mambapy(make, backend):
    mamba = pytest.importorskip("mambapy.mamba")
    skip_unless_served(backend)
    torch.manual_seed(0)
    block = mamba.MambaBlock(mamba.MambaConfig(d_model=8, n_layers=1, d_state=6))
    inputs = make(2, 16, 21, 6)
    u, delta, B, C = (inputs[name].mT for name in ("u", "delta", "B", "C"))
    exact = block.selective_scan(u, softplus(delta), inputs["A"], B, C, inputs["D"]).mT
    arguments = (inputs[name] for name in ("u", "delta", "A", "B", "C", "D"))
    y = selective_scan(*arguments, delta_softplus=True, backend=backend)
    torch.testing.assert_close(y, exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_equals_the_mixer_of_transformers(backend):
    modeling = pytest.importorskip("transformers.models.mamba.modeling_mamba")
    skip_unless_served(backend)
    torch.manual_seed(0)
    config = modeling.MambaConfig(hidden_size=12, state_size=5, num_hidden_layers=1)
    mixer = modeling.MambaMixer(config, layer_idx=0)
    x = torch.randn(2, 19, 12)
    exact = mixer(x)
    u, z = mixer.in_proj(x).mT.chunk(2, 1)
    u = torch.nn.functional.silu(mixer.conv1d(u)[..., :19])
    step, B, C = mixer.x_proj(u.mT).split([mixer.time_step_rank, 5, 5], -1)
    delta = (step @ mixer.dt_proj.weight.T).mT
    A = -torch.exp(mixer.A_log.float())
    y = selective_scan(
        u, delta, A, B.mT, C.mT, mixer.D, z, mixer.dt_proj.bias, delta_softplus=True, backend=backend
    )
    torch.testing.assert_close(mixer.out_proj(y.mT), exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cut", [1, 5, 16, 32, 39])
def test_pieces_with_the_state_handed_over_are_the_whole(make, both_ways, cut, backend):
    """With their gradients too: those of the first piece come through the state."""
    skip_unless_served(backend)
    inputs = make(2, 9, 40, 5)
    inputs = {name: x.requires_grad_() for name, x in inputs.items()}
    moving = ("u", "delta", "B", "C", "z")

    def gradients(y, last):
        loss = (y * torch.linspace(-1, 1, 40)).sum() + last.square().sum()
        return torch.autograd.grad(loss, list(inputs.values()))

    options = {"delta_softplus": True, "return_last_state": True, "backend": backend}
    whole = selective_scan(**inputs, **options)
    first = inputs | {name: inputs[name][..., :cut] for name in moving}
    second = inputs | {name: inputs[name][..., cut:] for name in moving}
    y_first, state = selective_scan(**first, **options)
    y_second, last = selective_scan(**(second | {"initial_state": state}), **options)
    pieces = torch.cat((y_first, y_second), -1), last
    for found, exact in zip(pieces, whole, strict=True):
        torch.testing.assert_close(found, exact, rtol=0, atol=3e-6)
    for found, exact in zip(gradients(*pieces), gradients(*whole), strict=True):
        torch.testing.assert_close(found, exact, rtol=0, atol=2e-6 * float(exact.abs().max()))


@pytest.mark.parametrize("backend", FAST)
def test_any_strides(make, both_ways, backend):
    skip_unless_served(backend)
    inputs = make(2, 6, 20, 4, groups=2)
    exact = both_ways(inputs, delta_softplus=True, backend=backend)
    for change in (
        lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
        lambda x: torch.stack((x, -x), -1).flatten(-2)[..., ::2],
        lambda x: torch.stack((-x, x)).unbind()[1],
    ):
        strided = {name: change(x) if x.dim() > 1 else x for name, x in inputs.items()}
        leaves = {name: x.detach().requires_grad_() for name, x in strided.items()}
        y = selective_scan(**leaves, delta_softplus=True, backend=backend)
        torch.testing.assert_close(y.detach(), exact["y"], rtol=0, atol=2e-6)
        # A gradient that lies otherwise than the output.
        (grad,) = torch.autograd.grad(
            y, leaves["u"], torch.ones(20, 6, 2).permute(2, 1, 0), retain_graph=True
        )
        (same,) = torch.autograd.grad(y, leaves["u"], torch.ones(2, 6, 20))
        assert torch.equal(grad, same)
    shared = inputs | {name: inputs[name][:1].expand(2, *inputs[name].shape[1:]) for name in ("u", "B")}
    copied = {name: x.clone() for name, x in shared.items()}
    options = {"delta_softplus": True, "backend": backend}
    assert torch.equal(selective_scan(**shared, **options), selective_scan(**copied, **options))


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_samples(make, both_ways, backend):
    skip_unless_served(backend)
    inputs = {name: x[:0] if x.dim() > 2 else x for name, x in make(2, 3, 20, 4).items()}
    found = both_ways(inputs, delta_softplus=True, backend=backend)
    assert found["y"].shape == (0, 3, 20)
    assert not found["grad of A"].any()
    assert not found["grad of delta_bias"].any()


def test_the_number_of_threads_does_not_show(make, both_ways):
    skip_unless_served("native")
    before = torch.get_num_threads()
    found = []
    try:
        # One sample of several tasks, and several samples.
        for sizes in ((1, 80, 64, 16), (3, 40, 100, 16)):
            inputs = make(*sizes)
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                found.append(both_ways(inputs, delta_softplus=True, backend="native"))
            for name, x in found[-3].items():
                assert torch.equal(x, found[-2][name]), name
                assert torch.equal(x, found[-1][name]), name
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("backend", FAST)
def test_gradients_without_kept_states(make, backend):
    """The backward pass makes those it needs, if a forward pass without them is followed by one."""
    skip_unless_served(backend)
    run = cpu if backend == "native" else pure
    inputs = Inputs(**make(1, 4, 50, 3))._replace(initial_state=None)
    kept, bare = (run.forward(inputs, True, keep) for keep in (True, False))
    assert torch.equal(kept.y, bare.y)
    assert kept.checkpoints.shape == (1, 3, 3, 4)
    assert bare.checkpoints.shape == (1, 0, 3, 4)
    outer = torch.ones(1, 4, 50)
    expected = run.backward(outer, None, inputs, kept.checkpoints, True)
    found = torch.ops.hexad.selective_scan_backward(outer, None, *inputs, bare.checkpoints, True, backend)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_auto_takes_native_code_where_there_is_some(make):
    inputs = make(1, 4, 20, 3)
    name = "native" if available_backends("cpu")["native"] is None else "torch"
    assert torch.equal(selective_scan(**inputs), selective_scan(**inputs, backend=name))
    inputs = wide(inputs)
    assert torch.equal(selective_scan(**inputs), selective_scan(**inputs, backend="torch"))
    with pytest.raises(InputError, match="'native' cannot run this call: it does not compute in float64"):
        selective_scan(**inputs, backend="native")


MEMORY = r"""
import re
from pathlib import Path

import torch

from hexad.kernels.selective_scan import selective_scan

def kilobytes(name):
    return int(re.search(name + r":\s+(\d+)", Path("/proc/self/status").read_text())[1])

def call(steps):
    u, delta = torch.ones(2, 2, 64, steps).requires_grad_().unbind()
    B, C = torch.ones(2, 2, 64, steps).unbind()
    y = selective_scan(u, delta, -torch.ones(64, 64), B, C, delta_softplus=True, backend=BACKEND)
    y.sum().backward()

call(32)
before = kilobytes("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
call(2048)
print(kilobytes("VmHWM") - before)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="it needs Linux' /proc")
@pytest.mark.parametrize("backend", FAST)
def test_states_are_not_all_kept(backend):
    skip_unless_served(backend)
    code = MEMORY.replace("BACKEND", repr(backend))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    every_state = 2 * 64 * 64 * 2048 * 4 // 1024  # 64 MiB, of which one in 16 is kept
    assert int(done.stdout) < every_state / 2
