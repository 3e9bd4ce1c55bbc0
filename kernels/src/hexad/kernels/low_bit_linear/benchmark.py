"""How fast the low-bit linear layer is on this CPU beside torch's own layers, and what its weights take.

A format such as W4A8 has weights of 4 bits and an input rounded to 8; A16 leaves the input as it is. Times
count the whole call: the Hadamard transform of the input, its rounding, the product and the scaling. Beside
`nn.Linear` in float32 and bfloat16 stand two layers of torch that read smaller weights: int8 weights with an
input that is rounded to int8 call by call (`quantized::linear_dynamic`), and int4 weights in groups of 128
with a bfloat16 input (`_weight_int4pack_mm_for_cpu`).
"""

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from hexad.core.errors import InputError
from hexad.core.timing import interleave
from hexad.kernels.low_bit_linear import cpu, reference
from hexad.kernels.low_bit_linear.backends import choose
from hexad.kernels.low_bit_linear.functional import available_backends, low_bit_linear
from hexad.kernels.low_bit_linear.grids import (
    ActivationGrid,
    GridName,
    code_bits,
    integer_levels,
    quantize_rows,
)
from hexad.kernels.low_bit_linear.packing import level_sums, pack_codes
from hexad.kernels.tables import Table

_FORMAT = re.compile(r"W([1-8]|ternary|fp4)A([1-8]|16|ternary|fp4)")
# The best multiples of the root mean square for Gaussian rows, to two digits: time does not ask for more.
_ALPHA: dict[GridName, float] = {1: 0.80, 2: 1.49, 3: 2.05, 4: 2.51, 5: 2.92, 6: 3.28, 7: 3.61, 8: 3.92}
_ALPHA |= {"ternary": 1.22, "fp4": 2.92}
_FLOAT32, _BFLOAT16, _INT8, _INT4 = "float32", "bfloat16", "torch int8", "torch int4"


def _shape(text: str) -> tuple[int, int]:
    """Rows and columns, or zeros for what is no shape."""
    found = re.fullmatch(r"(\d+)x(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


@dataclass(frozen=True)
class BenchmarkConfig:
    """What is measured.

    Attributes:
        shapes: of the weights, rows x columns.
        lengths: numbers of tokens of a call.
        formats: bits of weights and input, such as W4A8; ternary and fp4 stand for bits.
        block: of the Hadamard transform.
        rounds: timed turns of each call.
    """

    shapes: tuple[str, ...] = ("4096x4096", "11008x4096", "4096x11008")
    lengths: tuple[int, ...] = (1, 4, 16, 64, 512)
    formats: tuple[str, ...] = ("W1A1", "W2A2", "W3A3", "W4A4", "W4A8", "W8A8", "Wfp4A8", "W4A16")
    block: int = 128
    rounds: int = 15

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise InputError(f"rounds must be at least 1, got {self.rounds}")
        for shape in self.shapes:
            rows, k = _shape(shape)
            if not rows or not k or k % self.block:
                raise InputError(
                    f"shapes must be rows x columns with a multiple of {self.block} columns, got {shape!r}"
                )
        for length in self.lengths:
            if length < 1:
                raise InputError(f"lengths must be at least 1, got {length}")
        for name in self.formats:
            if not _FORMAT.fullmatch(name):
                raise InputError(
                    f"formats must be like W4A8: W1 to W8, Wternary or Wfp4, and A1 to A8, Aternary, Afp4 or "
                    f"A16 for an input that is not rounded; got {name!r}"
                )


PRESETS = {
    "quick": BenchmarkConfig(
        shapes=("4096x4096",), lengths=(1, 16, 512), formats=("W2A2", "W4A4", "W4A8"), rounds=7
    ),
    "full": BenchmarkConfig(),
}


@dataclass(frozen=True)
class Row:
    """One layer on one number of tokens; times are medians over the rounds.

    Attributes:
        layer: a format, or the name of one of torch's layers.
        weight_bytes: of every tensor that the layer keeps.
        than_bfloat16, than_float32: how many times faster than that `nn.Linear`, the median over the rounds.
        error: largest distance from `reference.linear` on 64 rows of weights, over its largest entry; None
            for torch's layers.
    """

    shape: str
    length: int
    layer: str
    microseconds: float
    weight_bytes: int
    than_bfloat16: float
    than_float32: float
    error: float | None


def paths() -> dict[str, str | None]:
    """The backends on this machine's CPU, each with the reason why it cannot serve, or None."""
    return available_backends("cpu")


def serving() -> str:
    """The backend that takes an ordinary call on this machine's CPU."""
    return choose("auto", "cpu", 4096, 128)


def details() -> str:
    """What the native path was compiled by and which instructions it uses, or why there is none."""
    return f"{cpu.library.status()} ({cpu.instructions()})" if cpu.library.load() else cpu.library.status()


def conditions(config: BenchmarkConfig) -> str:
    """What the tables do not tell."""
    dtypes = "float32 input (bfloat16 for bfloat16, int4 and A16)"
    return f"{dtypes}, blocks of {config.block}, backend {serving()!r}"


def measure(
    config: BenchmarkConfig, watch: Callable[[float, str], None] = lambda fraction, note: None
) -> tuple[list[Row], list[str]]:
    """Time every layer; returns the rows, and a note for each that could not be timed."""
    rows: list[Row] = []
    notes: list[str] = []
    steps = len(config.shapes) * len(config.lengths)
    for number, shape in enumerate(config.shapes):
        at = number * len(config.lengths)
        watch(at / steps, f"{shape}: packing")
        weights = torch.randn(*_shape(shape), generator=torch.Generator().manual_seed(0))
        layers = {name: _packed(weights, name, config.block) for name in config.formats}
        layers |= _layers_of_torch(weights, notes)
        for done, length in enumerate(config.lengths):
            watch((at + done) / steps, f"{shape}: {length} tokens")
            rows += _measure_call(config, shape, length, layers)
    watch(1.0, "")
    return rows, list(dict.fromkeys(notes))


def tables(rows: list[Row]) -> list[Table]:
    """One table a shape, one line a layer, one column a number of tokens."""
    made = []
    for shape in dict.fromkeys(row.shape for row in rows):
        here = [row for row in rows if row.shape == shape]
        lengths = list(dict.fromkeys(row.length for row in here))
        lines = []
        for layer in dict.fromkeys(row.layer for row in here):
            line = {row.length: row for row in here if row.layer == layer}
            megabytes = f"{line[lengths[0]].weight_bytes / 1e6:.1f} MB"
            lines.append([layer, megabytes, *(_cell(line[length]) for length in lengths)])
        title = f"Weights {shape}: time, times faster than `nn.Linear` in bfloat16, in float32"
        tokens = [f"{length} token{'s' * (length > 1)}" for length in lengths]
        made.append(Table(title, ["layer", "weights", *tokens], lines))
    return made


def _cell(row: Row) -> str:
    time = f"{row.microseconds:.0f} µs" if row.microseconds < 10_000 else f"{row.microseconds / 1000:.1f} ms"
    return f"{time}, {row.than_bfloat16:.2f}x, {row.than_float32:.1f}x"


@dataclass(frozen=True)
class _Layer:
    """A layer as a function of float32 tokens: `prepare` makes them its own before time is taken."""

    run: Callable[[Tensor], Tensor]
    weight_bytes: int
    prepare: Callable[[Tensor], Tensor] = lambda x: x
    exact: Callable[[Tensor], Tensor] | None = None


def _packed(weights: Tensor, name: str, block: int) -> _Layer:
    found = _FORMAT.fullmatch(name)
    assert found is not None
    weight_bits, input_bits = (int(part) if part.isdecimal() else part for part in found.groups())
    grid = ActivationGrid(weight_bits, _ALPHA[weight_bits])  # ty: ignore[invalid-argument-type]
    # The transform of Gaussian weights is Gaussian: they may stand for transformed ones.
    codes, scale = quantize_rows(weights, grid)
    bits, levels = code_bits(grid.bits), integer_levels(grid.bits)
    packed = pack_codes(codes, bits)
    sums = level_sums(packed, levels, bits=bits, k=weights.shape[1])
    activation = None
    if input_bits != 16:
        activation = ActivationGrid(input_bits, _ALPHA[input_bits])  # ty: ignore[invalid-argument-type]
    options: dict[str, Any] = {"levels": levels, "bits": bits, "activation": activation, "block": block}
    return _Layer(
        run=lambda x: low_bit_linear(x, packed, scale, row_sums=sums, **options),
        weight_bytes=sum(t.numel() * t.element_size() for t in (packed, scale, sums, levels)),
        # An input that is not rounded comes in the dtype of the layers that it competes with.
        prepare=lambda x: x.to(torch.bfloat16) if activation is None else x,
        exact=lambda x: reference.linear(x, packed[:64], scale[:64], None, **options),
    )


def _layers_of_torch(weights: Tensor, notes: list[str]) -> dict[str, _Layer]:
    rows, k = weights.shape
    half = weights.to(torch.bfloat16)
    layers = {
        _FLOAT32: _Layer(lambda x: linear(x, weights), 4 * rows * k),
        _BFLOAT16: _Layer(lambda x: linear(x, half), 2 * rows * k, prepare=lambda x: x.to(torch.bfloat16)),
    }
    try:
        scale = weights.abs().amax(1) / 127
        zero = torch.zeros(rows, dtype=torch.int64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # quantised tensors are to go, and with them this line
            quantized = torch.quantize_per_channel(weights, scale, zero, 0, torch.qint8)
        int8 = torch.ops.quantized.linear_prepack(quantized, None)
        layers[_INT8] = _Layer(lambda x: torch.ops.quantized.linear_dynamic(x, int8), rows * (k + 4))
        layers[_INT8].run(torch.ones(1, k))
    except (AttributeError, RuntimeError) as error:
        layers.pop(_INT8, None)
        notes.append(f"{_INT8} is left out: {str(error).splitlines()[0]}")
    try:
        codes = torch.randint(0, 16, (rows, k), dtype=torch.int32)
        int4 = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 2)
        scales = torch.ones(k // 128, rows, 2, dtype=torch.bfloat16)
        layers[_INT4] = _Layer(
            lambda x: torch.ops.aten._weight_int4pack_mm_for_cpu(x, int4, 128, scales),
            rows * k // 2 + 2 * scales.numel(),
            prepare=lambda x: x.to(torch.bfloat16),
        )
        layers[_INT4].run(torch.ones(1, k, dtype=torch.bfloat16))
    except (AttributeError, RuntimeError) as error:
        layers.pop(_INT4, None)
        notes.append(f"{_INT4} is left out: {str(error).splitlines()[0]}")
    return layers


@torch.inference_mode()
def _measure_call(
    config: BenchmarkConfig, shape: str, length: int, layers: dict[str, _Layer]
) -> Iterator[Row]:
    x = torch.randn(length, _shape(shape)[1], generator=torch.Generator().manual_seed(1))
    calls = {name: lambda layer=layer, own=layer.prepare(x): layer.run(own) for name, layer in layers.items()}
    errors = {}
    for name, layer in layers.items():
        if layer.exact is not None:
            exact = layer.exact(x[:4])
            wrong = (layer.run(x)[:4, : exact.shape[1]] - exact).abs().max()
            errors[name] = float(wrong / exact.abs().max())
    timing = interleave(calls, rounds=config.rounds, warmup=2)
    for name, layer in layers.items():
        yield Row(
            shape=shape,
            length=length,
            layer=name,
            microseconds=1e6 * timing.median(name),
            weight_bytes=layer.weight_bytes,
            than_bfloat16=timing.speedup(name, _BFLOAT16),
            than_float32=timing.speedup(name, _FLOAT32),
            error=errors.get(name),
        )
