"""What the commands of spargeattn share: options, and checks of them and of files."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from hexad.core.errors import InputError
from hexad.core.files import writable_file

if TYPE_CHECKING:
    from hexad.llm_efficiency.spargeattn.calls import AttentionCall
    from hexad.llm_efficiency.spargeattn.params import HeadParams

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)

Qkv = Annotated[Path, typer.Option("--qkv", help="Safetensors file with the tensors q, k and v.")]
Params = Annotated[Path | None, typer.Option("--params", help="Tuned parameters, instead of the thresholds.")]
Layer = Annotated[int | None, typer.Option(help="Layer to take from a file of parameters of several.")]
# The thresholds are None where they are not given, so that one given beside --params can be refused.
Theta = Annotated[
    float | None,
    typer.Option(help="Blocks at most this self-similar are never skipped; 1 is dense.", show_default="0.6"),
]
Tau = Annotated[
    float | None, typer.Option(help="Share of the predicted attention mass to keep.", show_default="0.98")
]
Topk = Annotated[float | None, typer.Option(help="Share of the key blocks to keep, instead of --tau.")]
Lambda = Annotated[float | None, typer.Option("--lambda", help="Threshold of the second filter, log2 units.")]
Sink = Annotated[bool, typer.Option("--sink", help="Always keep the first block of keys.")]
BlockQ = Annotated[int | None, typer.Option(help="Queries in a block.", show_default="128")]
BlockK = Annotated[int | None, typer.Option(help="Keys in a block.", show_default="64")]
Causal = Annotated[
    bool | None,
    typer.Option("--causal/--no-causal", help="Causal attention; the file's metadata say so else."),
]
BackendName = Literal["auto", "reference", "native", "gather", "triton", "flex"]
Backend = Annotated[BackendName, typer.Option(help="Kernel to use.")]
Quantize = Annotated[bool, typer.Option("--int8", help="Round Q and K to INT8.")]
Device = Annotated[str, typer.Option(help="Device to run on: cpu, cuda ...")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of tables.")]


def check_out(out: Path | None, inputs: Iterable[Path]) -> None:
    """Refuse an output that cannot be written or would replace an input, before any work."""
    if out is None:
        return
    writable_file(out, "--out")
    if any(out.resolve() == path.resolve() for path in inputs):
        raise InputError(f"--out {out} is also an input; choose another name")


def check_different(option: str, paths: Iterable[Path], why: str) -> None:
    """Refuse the same file given twice."""
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise InputError(f"{option} names {path} twice; {why}")
        seen.add(path.resolve())


def load(path: Path, causal: bool | None, device: str) -> "AttentionCall":
    """Read a call onto the device; `causal` overrules the file."""
    from hexad.core.devices import find_device
    from hexad.llm_efficiency.spargeattn.calls import load_call

    return load_call(path, str(find_device(device)), causal)


def choose_params(
    file: Path | None,
    layer: int | None,
    theta: float | None,
    tau: float | None,
    topk: float | None,
    pv_threshold: float | None,
    sink: bool,
    block_q: int | None,
    block_k: int | None,
) -> "HeadParams":
    """The parameters in a file, or else those given by the thresholds.

    Raises:
        InputError: options that contradict one another, or a file or layer that is not there.
    """
    from hexad.llm_efficiency.spargeattn.params import HeadParams, load_layers

    options: dict[str, Any] = {
        "theta": theta,
        "tau": tau,
        "topk": topk,
        "pv_threshold": pv_threshold,
        "attention_sink": sink or None,
        "block_q": block_q,
        "block_k": block_k,
    }
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if file is None:
        if layer is not None:
            raise InputError("--layer chooses from a file of parameters; name one with --params")
        if "tau" in given and "topk" in given:
            raise InputError("--tau and --topk are two ways to choose; leave one of them out")
        if "topk" in given:
            given["tau"] = None
        return HeadParams(**given)
    if given:
        spelt = {"pv_threshold": "--lambda", "attention_sink": "--sink"}
        named = ", ".join(spelt.get(name, f"--{name.replace('_', '-')}") for name in given)
        raise InputError(f"--params {file} holds all thresholds; leave out {named}, or --params")
    layers = load_layers(file)
    if layer is None and len(layers) > 1:
        raise InputError(f"{file} holds the layers {sorted(layers)}; choose one with --layer")
    chosen = next(iter(layers)) if layer is None else layer
    if chosen not in layers:
        raise InputError(f"{file} holds the layers {sorted(layers)}, not {chosen}")
    return layers[chosen]


def check_heads(params: "HeadParams", file: Path | None, call: "AttentionCall", qkv: Path) -> None:
    """Refuse parameters of another number of heads than the call has (`InputError`)."""
    heads = call.q.shape[1]
    if params.heads not in (None, heads):
        raise InputError(f"{file} holds parameters of {params.heads} heads, and {qkv} has {heads}")


def describe(path: Path, call: "AttentionCall") -> dict[str, Any]:
    """The call, as reports name it."""
    return {
        "qkv": str(path),
        "q": list(call.q.shape),
        "k": list(call.k.shape),
        "dtype": str(call.q.dtype).removeprefix("torch."),
        "is_causal": call.is_causal,
    }
