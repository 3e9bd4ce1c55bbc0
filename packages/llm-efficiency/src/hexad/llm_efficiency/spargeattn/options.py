"""What the commands of spargeattn share: options, and checks of them and of files."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from hexad.core.errors import InputError
from hexad.core.files import writable_folder

if TYPE_CHECKING:
    from hexad.llm_efficiency.spargeattn.calls import AttentionCall
    from hexad.llm_efficiency.spargeattn.params import HeadParams

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)

Qkv = Annotated[Path, typer.Option("--qkv", help="Safetensors file with the tensors q, k and v.")]
Params = Annotated[Path | None, typer.Option("--params", help="Tuned parameters, instead of the thresholds.")]
Layer = Annotated[int | None, typer.Option(help="Layer to take from a file of parameters of several.")]
Theta = Annotated[float, typer.Option(help="Blocks at most this self-similar are never skipped; 1 is dense.")]
Tau = Annotated[float, typer.Option(help="Share of the predicted attention mass to keep.")]
Topk = Annotated[float | None, typer.Option(help="Share of the key blocks to keep, instead of --tau.")]
Lambda = Annotated[float | None, typer.Option("--lambda", help="Threshold of the second filter, log2 units.")]
Sink = Annotated[bool, typer.Option("--sink", help="Always keep the first block of keys.")]
BlockQ = Annotated[int, typer.Option(help="Queries in a block.")]
BlockK = Annotated[int, typer.Option(help="Keys in a block.")]
Causal = Annotated[
    bool | None,
    typer.Option("--causal/--no-causal", help="Causal attention; the file's metadata say so else."),
]
BackendName = Literal["auto", "reference", "native", "gather", "triton", "flex"]
Backend = Annotated[BackendName, typer.Option(help="Kernel to use.")]
Quantize = Annotated[bool, typer.Option("--int8", help="Round Q and K to INT8.")]
Device = Annotated[str, typer.Option(help="Device to run on: cpu, cuda ...")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of tables.")]


def check_out(out: Path | None, inputs: list[Path]) -> None:
    """Refuse an output that cannot be written or would replace an input, before any work."""
    if out is None:
        return
    if out.is_dir():
        raise InputError(f"--out {out} is a folder; name a file")
    if any(out.resolve() == path.resolve() for path in inputs):
        raise InputError(f"--out {out} is also an input; choose another name")
    writable_folder(out.parent, "folder of --out")


def load(path: Path, causal: bool | None, device: str) -> "AttentionCall":
    """Read a call onto the device; `causal` overrules the file."""
    import torch

    from hexad.llm_efficiency.spargeattn.calls import load_call

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from None
    call = load_call(path, device)
    return call if causal is None else replace(call, is_causal=causal)


def choose_params(
    file: Path | None,
    layer: int | None,
    theta: float,
    tau: float,
    topk: float | None,
    pv_threshold: float | None,
    sink: bool,
    block_q: int,
    block_k: int,
) -> "HeadParams":
    """The parameters in a file, or else those given by the thresholds."""
    from hexad.llm_efficiency.spargeattn.params import HeadParams, load_layers

    if file is None:
        return HeadParams(theta, tau if topk is None else None, topk, pv_threshold, sink, block_q, block_k)
    layers = load_layers(file)
    if layer is None and len(layers) > 1:
        raise InputError(f"{file} holds the layers {sorted(layers)}; choose one with --layer")
    chosen = next(iter(layers)) if layer is None else layer
    if chosen not in layers:
        raise InputError(f"{file} holds the layers {sorted(layers)}, not {chosen}")
    return layers[chosen]


def describe(path: Path, call: "AttentionCall") -> dict[str, Any]:
    """The call, as reports name it."""
    return {
        "qkv": str(path),
        "q": list(call.q.shape),
        "k": list(call.k.shape),
        "dtype": str(call.q.dtype).removeprefix("torch."),
        "is_causal": call.is_causal,
    }


def make_table(*headings: str) -> Table:
    """A table of right-aligned columns in the house style."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table
