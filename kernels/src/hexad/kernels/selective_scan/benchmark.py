"""How fast the CPU paths of the selective scan are beside mambapy's parallel scan, and what memory they take.

A call is the scan of a Mamba block, forward and backward: softplus of delta, D, no gate, gradients of all six
tensors (u, delta, A, B, C, D). mambapy's is what its `MambaBlock` does on the same tensors, between the
transpositions that its layout needs. Memory is how far the resident memory of a fresh process rises above
what it holds with the inputs made, while it runs one call forward and backward.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import softplus

from hexad.core.errors import InputError
from hexad.core.timing import interleave
from hexad.kernels.selective_scan import cpu
from hexad.kernels.selective_scan.backends import choose
from hexad.kernels.selective_scan.functional import available_backends, selective_scan
from hexad.kernels.tables import Table

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_PEER = "mambapy"
_OWN = ("native", "torch")
# mambapy holds about ten tensors of (batch, steps, channels, states) at a time.
_MOST_PEER_STATES = 64 * 2**20


def _sizes(text: str) -> tuple[int, int, int, int]:
    """Batch, channels, steps and states, or zeros for what is no shape."""
    found = re.fullmatch(r"(\d+)x(\d+)x(\d+)x(\d+)", text)
    batch, channels, steps, states = map(int, found.groups()) if found else (0, 0, 0, 0)
    return batch, channels, steps, states


@dataclass(frozen=True)
class BenchmarkConfig:
    """What is measured.

    Attributes:
        lengths: numbers of steps, each with the batch, channels and states that follow.
        shapes: more calls, as batch x channels x steps x states.
        dtypes: of u, delta, B and C; A and D are float32. mambapy runs in float32 alone.
        batch, channels, states: of the calls of every length.
        rounds: timed turns of each call.
        memory: measure the memory too, in processes of their own.
    """

    lengths: tuple[int, ...] = (1, 16, 49, 196, 784)
    shapes: tuple[str, ...] = (
        "32x256x196x1",
        "32x256x196x4",
        "32x256x196x64",
        "32x64x196x16",
        "8x1536x196x16",
        "1x1536x2048x16",
    )
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    batch: int = 32
    channels: int = 256
    states: int = 16
    rounds: int = 5
    memory: bool = True

    def __post_init__(self) -> None:
        for name in ("batch", "channels", "states", "rounds"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        for length in self.lengths:
            if length < 1:
                raise InputError(f"lengths must be at least 1, got {length}")
        for shape in self.shapes:
            if 0 in _sizes(shape):
                raise InputError(
                    f"shapes must be batch x channels x steps x states, such as 32x256x196x16, got {shape!r}"
                )
        for dtype in self.dtypes:
            if dtype not in _DTYPES:
                raise InputError(f"dtypes must be among {', '.join(_DTYPES)}, got {dtype!r}")

    def calls(self) -> list[tuple[str, str]]:
        """Every shape with its dtype."""
        made = [f"{self.batch}x{self.channels}x{length}x{self.states}" for length in self.lengths]
        return [(dtype, shape) for dtype in self.dtypes for shape in dict.fromkeys((*made, *self.shapes))]


PRESETS = {
    "quick": BenchmarkConfig(lengths=(16, 196), shapes=(), dtypes=("float32",), rounds=3),
    "full": BenchmarkConfig(),
}


@dataclass(frozen=True)
class Row:
    """One path on one call; times are medians over the rounds.

    Attributes:
        forward_milliseconds: without gradients.
        milliseconds: forward and backward.
        speedup: how many times faster than mambapy forward and backward, the median over the rounds of the
            ratio; None where mambapy was not run.
        megabytes: the rise of resident memory (10^6 bytes); None where it was not measured.
        error: the largest over the output and the six gradients of their largest distance from the scan in
            float64, over its largest entry.
    """

    dtype: str
    shape: str
    path: str
    forward_milliseconds: float
    milliseconds: float
    speedup: float | None
    megabytes: float | None
    error: float


def paths() -> dict[str, str | None]:
    """The backends on this machine's CPU, each with the reason why it cannot serve, or None."""
    return available_backends("cpu")


def serving() -> str:
    """The backend that takes an ordinary call on this machine's CPU."""
    return choose("auto", "cpu", torch.float32, 16, False)


def details() -> str:
    """What the native path was compiled by and which instructions it uses, or why there is none."""
    return f"{cpu.library.status()} ({cpu.instructions()})" if cpu.library.load() else cpu.library.status()


def conditions(config: BenchmarkConfig) -> str:
    """What the tables do not tell."""
    return "gradients of u, delta, A, B, C and D"


def measure(
    config: BenchmarkConfig, watch: Callable[[float, str], None] = lambda fraction, note: None
) -> tuple[list[Row], list[str]]:
    """Time every path; returns the rows, and a note for each path that could not be timed."""
    notes = []
    reason = available_backends("cpu")["native"]
    if reason is not None:
        notes.append(f"native is left out: {reason}")
    own = [name for name in _OWN if name != "native" or reason is None]
    peer = find_spec("mambapy") is not None
    if not peer:
        notes.append("mambapy is left out: pip install 'hexad-kernels[peers]' brings it")
    rows: list[Row] = []
    calls = config.calls()
    for done, (dtype, shape) in enumerate(calls):
        watch(done / len(calls), f"{dtype}, {shape}")
        batch, channels, steps, states = _sizes(shape)
        small = batch * channels * steps * states <= _MOST_PEER_STATES
        if peer and dtype == "float32" and not small:
            notes.append(f"mambapy is left out at {shape}: it would take many gigabytes")
        with_peer = peer and dtype == "float32" and small
        rows += _measure_call(config, dtype, shape, [*own, *([_PEER] if with_peer else [])])
    watch(1.0, "")
    return rows, notes


def tables(rows: list[Row]) -> list[Table]:
    """One line a dtype and shape, one column a path."""
    names = list(dict.fromkeys(row.path for row in rows))
    calls: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        calls.setdefault((row.dtype, row.shape), {})[row.path] = row
    lines = []
    for (dtype, shape), line in calls.items():
        cells = [_cell(line[name]) if name in line else "" for name in names]
        lines.append([dtype, *map(str, _sizes(shape)), *cells])
    title = (
        "Selective scan: forward, forward and backward, times faster than mambapy, memory (largest error "
        "relative to float64)"
    )
    return [Table(title, ["dtype", "batch", "channels", "steps", "states", *names], lines)]


def _cell(row: Row) -> str:
    times = f"{row.forward_milliseconds:.3g} ms, {row.milliseconds:.3g} ms"
    speedup = "" if row.speedup is None or row.path == _PEER else f", {row.speedup:.3g}x"
    memory = "" if row.megabytes is None else f", {row.megabytes:.0f} MB"
    return f"{times}{speedup}{memory} ({row.error:.0e})"


Tensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _inputs(dtype: str, shape: str) -> Tensors:
    """u, delta, A, B, C and D as Mamba starts with them: A from -1 to -states, delta around 0.1."""
    batch, channels, steps, states = _sizes(shape)
    generator = torch.Generator().manual_seed(0)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator).to(_DTYPES[dtype])

    u, delta = normal(batch, channels, steps), normal(batch, channels, steps) - 2
    B, C = normal(batch, states, steps), normal(batch, states, steps)
    A = -torch.arange(1.0, states + 1).repeat(channels, 1)
    return u, delta, A, B, C, torch.ones(channels)


def _scan(path: str, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    if path != _PEER:
        y = selective_scan(u, delta, A, B, C, D, delta_softplus=True, backend=path)  # ty: ignore
        assert isinstance(y, Tensor)
        return y
    from mambapy.pscan import pscan

    u, step, B, C = u.mT, softplus(delta).mT, B.mT, C.mT
    decays = torch.exp(step.unsqueeze(-1) * A)
    states = pscan(decays, step.unsqueeze(-1) * B.unsqueeze(2) * u.unsqueeze(-1))
    return ((states @ C.unsqueeze(-1)).squeeze(3) + D * u).mT


def _both_ways(path: str, inputs: Tensors, outer: Tensor) -> list[Tensor]:
    """The output and the six gradients."""
    y = _scan(path, *inputs)
    return [y.detach(), *torch.autograd.grad(y, inputs, outer)]


def _measure_call(config: BenchmarkConfig, dtype: str, shape: str, names: list[str]) -> list[Row]:
    inputs = _inputs(dtype, shape)
    outer = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1)).to(_DTYPES[dtype])
    for x in inputs:
        x.requires_grad_()

    def forward(path: str) -> Tensor:
        with torch.no_grad():
            return _scan(path, *inputs)

    errors = _errors(inputs, outer, names)
    both = interleave(
        {name: partial(_both_ways, name, inputs, outer) for name in names}, rounds=config.rounds
    )
    alone = interleave({name: partial(forward, name) for name in names}, rounds=config.rounds)
    return [
        Row(
            dtype=dtype,
            shape=shape,
            path=name,
            forward_milliseconds=1e3 * alone.median(name),
            milliseconds=1e3 * both.median(name),
            speedup=both.speedup(name, _PEER) if _PEER in names else None,
            megabytes=_memory(name, dtype, shape) if config.memory else None,
            error=errors[name],
        )
        for name in names
    ]


def _errors(inputs: Tensors, outer: Tensor, names: list[str]) -> dict[str, float]:
    """Of each path on the first sample, beside the torch path in float64."""
    u, delta, A, B, C, D = (x.detach() for x in inputs)
    part = u[:1], delta[:1], A, B[:1], C[:1], D
    wide = [x.double().requires_grad_() for x in part]
    exact = _both_ways("torch", tuple(wide), outer[:1].double())  # ty: ignore[invalid-argument-type]
    found = {}
    for name in names:
        leaves = [x.clone().requires_grad_() for x in part]
        made = _both_ways(name, tuple(leaves), outer[:1])  # ty: ignore[invalid-argument-type]
        pairs = zip(made, exact, strict=True)
        found[name] = max(float((x - true).abs().max() / true.abs().max()) for x, true in pairs)
    return found


_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def _memory(path: str, dtype: str, shape: str) -> float | None:
    """The rise of resident memory in a process of its own; None where the system does not tell."""
    if not (_STATUS.exists() and _CLEAR.exists()):
        return None
    call = f"print_memory({path!r}, {dtype!r}, {shape!r}, {torch.get_num_threads()})"
    code = f"from hexad.kernels.selective_scan.benchmark import print_memory; {call}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"measuring the memory of {path} failed: {done.stderr.strip().splitlines()[-1]}")
    return float(done.stdout)


def print_memory(path: str, dtype: str, shape: str, threads: int) -> None:
    """Print by how many megabytes a call raises the peak of this process's resident memory."""

    def kilobytes(name: str) -> int:
        found = re.search(name + r":\s+(\d+)", _STATUS.read_text())
        assert found is not None
        return int(found[1])

    torch.set_num_threads(threads)
    _, channels, _, states = _sizes(shape)
    # A small call first: libraries, threads and the autograd engine take memory once.
    small = _inputs(dtype, f"1x{min(channels, 8)}x4x{states}")
    for x in small:
        x.requires_grad_()
    _both_ways(path, small, torch.ones_like(small[0]))
    inputs = _inputs(dtype, shape)
    outer = torch.ones_like(inputs[0])
    for x in inputs:
        x.requires_grad_()
    before = kilobytes("VmRSS")
    _CLEAR.write_text("5")  # the peak begins anew
    _both_ways(path, inputs, outer)
    print((kilobytes("VmHWM") - before) * 1024 / 1e6)
