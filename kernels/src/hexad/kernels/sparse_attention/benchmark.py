"""How fast the CPU paths of sparse attention are, as ratios to the dense attention of torch in the same run.

Two kinds of calls are timed, and in both everything counts: the prediction of a mask, the layout of its
tiles and the attention itself.

- `random`: a random mask of an exact density, the same number of tiles in every row; a mask of that density
  is predicted beside it and not used. It tells the speed at a density, whatever a predictor makes of inputs.
- `predicted`: `sparse_attention` as a user calls it, on tokens along a curve through feature space.

Errors are relative L1 distances on sampled query tiles: for random masks to float64 attention under the same
mask, for predicted ones to dense float64 attention.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from hexad.core.errors import InputError
from hexad.core.timing import Timing, interleave
from hexad.kernels.sparse_attention import cpu
from hexad.kernels.sparse_attention.backends import Backend, Call, choose
from hexad.kernels.sparse_attention.functional import (
    available_backends,
    block_sparse_attention,
    predict_block_mask,
    sparse_attention,
)
from hexad.kernels.sparse_attention.prediction import num_blocks
from hexad.kernels.tables import Table

BLOCK_Q, BLOCK_K = 128, 64
# The backend of the attention, that of the prediction, INT8 scores or not.
_Path = tuple[Backend, Literal["native", "torch"], bool]
# In the order of the table.
_PATHS: dict[str, _Path] = {
    "native": ("native", "native", False),
    "native INT8": ("native", "native", True),
    "gather": ("gather", "torch", False),
    "flex": ("flex", "torch", False),
}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_DENSE = "dense"


@dataclass(frozen=True)
class BenchmarkConfig:
    """What is measured.

    Attributes:
        lengths: numbers of tokens, queries and keys alike.
        densities: shares of the key tiles that a random mask keeps in each row.
        dtypes: names of torch dtypes.
        heads, head_dim: of q, k and v; the batch is 1.
        rounds: timed turns of each call.
        flex: also time flex_attention, whose compilation takes about half a minute for each length and dtype.
        tau: mass that the predicted masks keep.
    """

    lengths: tuple[int, ...] = (1024, 4096, 8192, 16384)
    densities: tuple[float, ...] = (1.0, 0.5, 0.25, 0.1, 0.05)
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    heads: int = 8
    head_dim: int = 64
    rounds: int = 5
    flex: bool = True
    tau: float = 0.95

    def __post_init__(self) -> None:
        for name in ("heads", "head_dim", "rounds"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        for length in self.lengths:
            if length < BLOCK_Q:
                raise InputError(f"lengths must be at least {BLOCK_Q}, one tile of queries, got {length}")
        for density in self.densities:
            if not 0 < density <= 1:
                raise InputError(f"densities must lie in (0, 1], got {density:g}")
        for dtype in self.dtypes:
            if dtype not in _DTYPES:
                raise InputError(f"dtypes must be among {', '.join(_DTYPES)}, got {dtype!r}")


PRESETS = {
    "quick": BenchmarkConfig(lengths=(1024, 4096), densities=(1.0, 0.25, 0.1), rounds=3, flex=False),
    "full": BenchmarkConfig(),
}


@dataclass(frozen=True)
class Row:
    """One path on one call; times are medians over the rounds.

    Attributes:
        mask: "random" or "predicted".
        kept: share of the tiles that were computed.
        speedup: how many times faster than dense attention: the median over rounds of the ratio.
        error, dense_error: relative L1 distance from float64 attention, of this path and of dense attention.
    """

    dtype: str
    length: int
    mask: str
    kept: float
    path: str
    milliseconds: float
    dense_milliseconds: float
    speedup: float
    error: float
    dense_error: float


def paths() -> dict[str, str | None]:
    """The backends on this machine's CPU, each with the reason why it cannot serve, or None."""
    return available_backends("cpu")


def serving() -> str:
    """The backend that takes an ordinary call on this machine's CPU."""
    return choose("auto", Call())


def details() -> str:
    """What the native path was compiled by and which instructions it uses, or why there is none."""
    return f"{cpu.library.status()} ({cpu.instructions()})" if cpu.library.load() else cpu.library.status()


def measure(
    config: BenchmarkConfig, watch: Callable[[float, str], None] = lambda fraction, note: None
) -> tuple[list[Row], list[str]]:
    """Time every path; returns the rows, and a note for each path that could not be timed.

    `watch` is told the share that is done and what comes next.
    """
    able, notes = {}, []
    for name, (backend, _, _) in _PATHS.items():
        reason = available_backends("cpu")[backend]
        if name == "flex" and not config.flex:
            continue
        if reason is not None:
            notes.append(f"{name} is left out: {reason}")
        else:
            able[name] = _PATHS[name]
    rows: list[Row] = []
    cells = [(dtype, length) for dtype in config.dtypes for length in config.lengths]
    for done, (dtype, length) in enumerate(cells):
        watch(done / len(cells), f"{dtype}, {length} tokens")
        q, k, v = _inputs(length, config.heads, config.head_dim, _DTYPES[dtype])
        if "flex" in able:
            failure = _try_flex(q, k, v)
            if failure is not None:
                notes.append(f"flex is left out: {failure}")
                del able["flex"]
        rows += _measure_calls(config, dtype, q, k, v, able)
    watch(1.0, "")
    return rows, notes


def tables(rows: list[Row]) -> list[Table]:
    """One table a kind of mask, one line a dtype, length and density."""
    names = [name for name in _PATHS if any(row.path == name for row in rows)]
    made = []
    for kind, title in (
        ("random", "Random masks: times faster than `scaled_dot_product_attention` (relative L1 error)"),
        ("predicted", "Predicted masks: the same, with the error against dense attention"),
    ):
        lines = []
        for line in by_call([row for row in rows if row.mask == kind]):
            first = line[next(iter(line))]
            cells = [
                f"{line[name].speedup:.2f}x ({line[name].error:.0e})" if name in line else ""
                for name in names
            ]
            dense = f"{first.dense_milliseconds:.1f} ms ({first.dense_error:.1e})"
            lines.append([first.dtype, str(first.length), f"{first.kept:.0%}", dense, *cells])
        made.append(Table(title, ["dtype", "tokens", "kept", "dense", *names], lines))
    return made


def conditions(config: BenchmarkConfig) -> str:
    """What the tables do not tell."""
    return f"{config.heads} heads of dimension {config.head_dim}"


def by_call(rows: list[Row]) -> list[dict[str, Row]]:
    """The rows of each call together, by path, in the order of their first appearance."""
    calls: dict[tuple, dict[str, Row]] = {}
    for row in rows:
        calls.setdefault((row.dtype, row.length, round(row.kept, 3)), {})[row.path] = row
    return list(calls.values())


def _inputs(length: int, heads: int, d: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens on a curve through feature space, each head at its own speed: neighbours are alike."""
    generator = torch.Generator().manual_seed(0)
    radians_a_token = 2e-4 + 1.8e-3 * torch.rand(heads, 1, d // 2, generator=generator)
    angle = torch.arange(length)[:, None] * radians_a_token
    curve = 1.5 * torch.cat((angle.sin(), angle.cos(), torch.zeros(heads, length, d % 2)), -1)
    noise = 0.2 * torch.randn(3, heads, length, d, generator=generator)
    q, k = curve + noise[0], curve + noise[1] + torch.randn(d, generator=generator)
    v = curve @ torch.randn(heads, d, d, generator=generator) / math.sqrt(d) + noise[2]
    q, k, v = (x[None].to(dtype).contiguous() for x in (q, k, v))
    return q, k, v


def _random_mask(heads: int, length: int, density: float) -> Bool[Tensor, "1 heads q_blocks k_blocks"]:
    """The same number of tiles in every row, at random."""
    q_blocks, k_blocks = num_blocks(length, BLOCK_Q), num_blocks(length, BLOCK_K)
    count = max(1, round(density * k_blocks))
    scores = torch.rand(1, heads, q_blocks, k_blocks, generator=torch.Generator().manual_seed(1))
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, scores.topk(count).indices, True)


def _try_flex(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Compile flex_attention for these inputs; why it cannot be, or None."""
    try:
        block_sparse_attention(q, k, v, _random_mask(q.shape[1], q.shape[2], 0.5), backend="flex")
    except Exception as error:  # inductor and the system's compiler fail in many ways
        return f"it does not compile here ({str(error).strip().splitlines()[0]})"
    return None


def _measure_calls(
    config: BenchmarkConfig,
    dtype: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    able: dict[str, _Path],
) -> Iterator[Row]:
    length = q.shape[2]
    everything = torch.ones(
        1, q.shape[1], num_blocks(length, BLOCK_Q), num_blocks(length, BLOCK_K), dtype=torch.bool
    )
    masks = {density: _random_mask(q.shape[1], length, density) for density in config.densities}
    calls: dict[Any, Callable[[], Tensor]] = {_DENSE: lambda: scaled_dot_product_attention(q, k, v)}

    def random_call(mask: Tensor, density: float, path: _Path) -> Callable[[], Tensor]:
        backend, predictor, int8 = path
        options: dict[str, Any] = {"backend": backend, "quantize": int8}

        def call() -> Tensor:
            predict_block_mask(q, k, theta=-1.0, tau=None, topk=density, backend=predictor)
            return block_sparse_attention(q, k, v, mask, **options)

        return call

    for density, mask in masks.items():
        for name, path in able.items():
            calls[density, name] = random_call(mask, density, path)
    predicted: dict[str, Any] = {"theta": 0.3, "tau": config.tau}
    for name, (backend, _, int8) in able.items():
        if name != "flex":
            options: dict[str, Any] = {**predicted, "backend": backend, "quantize": int8}
            calls["predicted", name] = lambda options=options: sparse_attention(q, k, v, **options)

    outputs = {name: call() for name, call in calls.items()}
    timing = interleave(calls, rounds=config.rounds, warmup=0)

    dense_exact = _exact(q, k, v, everything)
    dense_error = _error(outputs[_DENSE], dense_exact)
    for density, mask in masks.items():
        exact = _exact(q, k, v, mask)
        for name in able:
            at = (density, name)
            yield _row(
                timing,
                at,
                dtype,
                length,
                "random",
                float(mask.float().mean()),
                outputs[at],
                exact,
                dense_error,
            )
    kept = float(predict_block_mask(q, k, **predicted).float().mean())
    for name in able:
        if ("predicted", name) in calls:
            at = ("predicted", name)
            yield _row(timing, at, dtype, length, "predicted", kept, outputs[at], dense_exact, dense_error)


def _row(
    timing: Timing,
    at: Any,
    dtype: str,
    length: int,
    mask: str,
    kept: float,
    out: Tensor,
    exact: list[tuple[slice, Tensor]],
    dense_error: float,
) -> Row:
    return Row(
        dtype=dtype,
        length=length,
        mask=mask,
        kept=kept,
        path=at[1],
        milliseconds=1000 * timing.median(at),
        dense_milliseconds=1000 * timing.median(_DENSE),
        speedup=timing.speedup(at, _DENSE),
        error=_error(out, exact),
        dense_error=dense_error,
    )


def _exact(
    q: Float[Tensor, "1 heads n d"],
    k: Float[Tensor, "1 heads n d"],
    v: Float[Tensor, "1 heads n d"],
    mask: Bool[Tensor, "1 heads q_blocks k_blocks"],
) -> list[tuple[slice, Tensor]]:
    """Float64 attention under the mask, on the first and on a middle tile of queries."""
    found = []
    for i in sorted({0, mask.shape[2] // 2}):
        rows = slice(i * BLOCK_Q, min((i + 1) * BLOCK_Q, q.shape[2]))
        scores = q[:, :, rows].double() @ k.double().transpose(-1, -2) / math.sqrt(q.shape[-1])
        seen = mask[:, :, i].repeat_interleave(BLOCK_K, -1)[..., : k.shape[2]]
        scores.masked_fill_(~seen[:, :, None], float("-inf"))
        found.append((rows, torch.softmax(scores, -1) @ v.double()))
    return found


def _error(out: Tensor, exact: list[tuple[slice, Tensor]]) -> float:
    wrong = sum(float((out[:, :, rows].double() - value).abs().sum()) for rows, value in exact)
    return wrong / sum(float(value.abs().sum()) for _, value in exact)
