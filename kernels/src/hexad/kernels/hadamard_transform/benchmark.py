"""How fast the CPU paths of the block Hadamard transform are beside one product with the block's matrix.

That product, with a matrix made beforehand, is what one writes without this package. Errors are relative L1
distances from the transform in float64.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hexad.core.errors import InputError
from hexad.core.timing import interleave
from hexad.kernels.hadamard_transform import cpu, pure, reference
from hexad.kernels.hadamard_transform.backends import choose
from hexad.kernels.hadamard_transform.functional import available_backends, hadamard_transform
from hexad.kernels.tables import Table

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_BASELINE = "one product"
_PATHS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "native": lambda x, block: hadamard_transform(x, block, backend="native"),
    "torch": lambda x, block: hadamard_transform(x, block, backend="torch"),
    "steps": pure.by_steps,
}


@dataclass(frozen=True)
class BenchmarkConfig:
    """What is measured.

    Attributes:
        lengths: numbers of rows that are transformed.
        blocks: sizes of the blocks.
        dtypes: names of torch dtypes.
        k: entries of a row.
        rounds: timed turns of each call.
    """

    lengths: tuple[int, ...] = (1, 16, 512, 4096)
    blocks: tuple[int, ...] = (16, 128, 512, 4096)
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    k: int = 4096
    rounds: int = 15

    def __post_init__(self) -> None:
        for name in ("k", "rounds"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        for length in self.lengths:
            if length < 1:
                raise InputError(f"lengths must be at least 1, got {length}")
        for dtype in self.dtypes:
            if dtype not in _DTYPES:
                raise InputError(f"dtypes must be among {', '.join(_DTYPES)}, got {dtype!r}")


PRESETS = {
    "quick": BenchmarkConfig(lengths=(1, 512), blocks=(128, 4096), rounds=5),
    "full": BenchmarkConfig(),
}


@dataclass(frozen=True)
class Row:
    """One path on one call; times are medians over the rounds.

    Attributes:
        speedup: how many times faster than one product: the median over rounds of the ratio.
        error, baseline_error: relative L1 distance from float64, of this path and of that product.
    """

    dtype: str
    length: int
    block: int
    path: str
    microseconds: float
    baseline_microseconds: float
    speedup: float
    error: float
    baseline_error: float


def paths() -> dict[str, str | None]:
    """The backends on this machine's CPU, each with the reason why it cannot serve, or None."""
    return available_backends("cpu")


def serving() -> str:
    """The backend that takes an ordinary call on this machine's CPU."""
    return choose("auto", "cpu", torch.float32, 128)


def details() -> str:
    """What the native path was compiled by and which instructions it uses, or why there is none."""
    return f"{cpu.library.status()} ({cpu.instructions()})" if cpu.library.load() else cpu.library.status()


def conditions(config: BenchmarkConfig) -> str:
    """What the tables do not tell."""
    return f"rows of {config.k} entries"


def measure(
    config: BenchmarkConfig, watch: Callable[[float, str], None] = lambda fraction, note: None
) -> tuple[list[Row], list[str]]:
    """Time every path; returns the rows, and a note for each path that could not be timed."""
    reason = available_backends("cpu")["native"]
    able = {name: path for name, path in _PATHS.items() if name != "native" or reason is None}
    notes = [] if reason is None else [f"native is left out: {reason}"]
    rows: list[Row] = []
    cells = [(d, n, b) for d in config.dtypes for n in config.lengths for b in config.blocks]
    for done, (dtype, length, block) in enumerate(cells):
        watch(done / len(cells), f"{dtype}, {length} rows, blocks of {block}")
        rows += _measure_call(config, dtype, length, block, able)
    watch(1.0, "")
    return rows, notes


def tables(rows: list[Row]) -> list[Table]:
    """One line a dtype, number of rows and block."""
    names = list(dict.fromkeys(row.path for row in rows))
    calls: dict[tuple[str, int, int], dict[str, Row]] = {}
    for row in rows:
        calls.setdefault((row.dtype, row.length, row.block), {})[row.path] = row
    lines = []
    for (dtype, length, block), line in calls.items():
        first = line[names[0]]
        baseline = f"{first.baseline_microseconds:.0f} µs ({first.baseline_error:.0e})"
        cells = [
            f"{line[n].microseconds:.0f} µs, {line[n].speedup:.1f}x ({line[n].error:.0e})" for n in names
        ]
        lines.append([dtype, str(length), str(block), baseline, *cells])
    title = "Block Hadamard transform: times faster than one product with the matrix (relative L1 error)"
    return [Table(title, ["dtype", "rows", "block", _BASELINE, *names], lines)]


def _measure_call(
    config: BenchmarkConfig,
    dtype: str,
    length: int,
    block: int,
    able: dict[str, Callable[[Tensor, int], Tensor]],
) -> Iterator[Row]:
    x = torch.randn(length, config.k, generator=torch.Generator().manual_seed(0)).to(_DTYPES[dtype])
    matrix = (reference.hadamard_signs(block) * block**-0.5).to(x.dtype)
    calls: dict[Any, Callable[[], Tensor]] = {
        _BASELINE: lambda: (x.unflatten(-1, (-1, block)) @ matrix).flatten(-2)
    }
    calls |= {name: lambda path=path: path(x, block) for name, path in able.items()}
    exact = reference.transform(x.to(torch.float64), block)
    errors = {
        name: float((y().double() - exact).abs().mean() / exact.abs().mean()) for name, y in calls.items()
    }
    timing = interleave(calls, rounds=config.rounds, warmup=2)
    for name in able:
        yield Row(
            dtype=dtype,
            length=length,
            block=block,
            path=name,
            microseconds=1e6 * timing.median(name),
            baseline_microseconds=1e6 * timing.median(_BASELINE),
            speedup=timing.speedup(name, _BASELINE),
            error=errors[name],
            baseline_error=errors[_BASELINE],
        )
