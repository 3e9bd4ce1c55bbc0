"""`hexad llm-efficiency spargeattn`: files of q, k and v in, reports, parameters and outputs out."""

from pathlib import Path
from typing import Annotated, Any

import typer

from hexad.core.files import atomic_path, write_json
from hexad.core.terminal import make_table, print_json, print_table, progress_bar
from hexad.core.validation import check_range
from hexad.llm_efficiency.spargeattn.options import (
    Backend,
    BlockK,
    BlockQ,
    Causal,
    Device,
    Json,
    Lambda,
    Layer,
    Params,
    Qkv,
    Quantize,
    Sink,
    Tau,
    Theta,
    Topk,
    check_heads,
    check_out,
    choose_params,
    describe,
    load,
    stderr,
    stdout,
)
from hexad.llm_efficiency.spargeattn.tuning_commands import calibrate, tune

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="SpargeAttn: sparse attention without training. Files of q, k and v are safetensors with tensors of "
    "those names, of shape (batch, heads, n, d); metadata may hold is_causal and scale.",
)


@app.command("bench")
def bench(
    qkv: Qkv,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the report here as JSON.")] = None,
    params: Params = None,
    layer: Layer = None,
    theta: Theta = None,
    tau: Tau = None,
    topk: Topk = None,
    pv_threshold: Lambda = None,
    sink: Sink = False,
    block_q: BlockQ = None,
    block_k: BlockK = None,
    causal: Causal = None,
    int8: Quantize = False,
    backend: Backend = "auto",
    rounds: Annotated[int, typer.Option(help="Timed rounds; each runs dense and sparse once.")] = 5,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Measure error, sparsity and speed on a call, beside dense attention in the same run.

    The time of the sparse call includes its prediction. Example:

        hexad llm-efficiency spargeattn bench --qkv layer3.safetensors --theta 0.5 --out report.json
    """
    check_range("--rounds", rounds, 1)
    check_out(out, [qkv, params] if params else [qkv])
    import torch

    from hexad.core.timing import interleave
    from hexad.llm_efficiency.spargeattn.attention import block_mask, dense_attention, sparge_attention
    from hexad.llm_efficiency.spargeattn.scoring import score

    chosen = choose_params(params, layer, theta, tau, topk, pv_threshold, sink, block_q, block_k)
    call = load(qkv, causal, device)
    check_heads(chosen, params, call, qkv)
    q, k, v = call.q, call.k, call.v
    options: dict[str, Any] = {"is_causal": call.is_causal, "scale": call.scale}
    sparse: dict[str, Any] = {**options, "params": chosen, "quantize": int8, "backend": backend}
    with progress_bar(stderr, "bench") as progress, torch.no_grad():
        progress(0.0, "error and sparsity")
        scores = score(chosen, call, backend=backend, quantize=int8)
        _, stats = sparge_attention(q, k, v, **sparse, return_stats=True)
        progress(0.3, "time")
        timing = interleave(
            {
                "dense": lambda: dense_attention(q, k, v, **options),
                "sparge": lambda: sparge_attention(q, k, v, **sparse),
                "prediction": lambda: block_mask(q, k, chosen, **options),
            },
            rounds=rounds,
            synchronize=torch.cuda.synchronize if q.device.type == "cuda" else None,
        )
    report: dict[str, Any] = describe(qkv, call) | {
        "backend": stats.backend,
        "sparsity": stats.sparsity,
        "rel_l1": float(scores.rel_l1.mean()),
        "speedup": timing.speedup("sparge", "dense"),
        "dense_seconds": timing.median("dense"),
        "sparge_seconds": timing.median("sparge"),
        "prediction_seconds": timing.median("prediction"),
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        "heads": [
            {"head": head, "sparsity": float(sparsity), "rel_l1": float(error)}
            for head, (sparsity, error) in enumerate(zip(scores.sparsity, scores.rel_l1, strict=True))
        ],
    }
    if out is not None:
        write_json(out, report)
    if as_json:
        print_json(report)
        return
    table = make_table("head", "sparsity", "relative L1")
    for row in report["heads"]:
        table.add_row(str(row["head"]), f"{row['sparsity']:.3f}", f"{row['rel_l1']:.4f}")
    print_table(stdout, table)
    stdout.print(
        f"{report['speedup']:.2f} times as fast as dense attention: "
        f"{1e3 * report['sparge_seconds']:.1f} ms, {1e3 * report['prediction_seconds']:.1f} of them to "
        f"predict, against {1e3 * report['dense_seconds']:.1f} ms; "
        f"{stats.sparsity:.1%} skipped, backend {stats.backend}"
    )
    if out is not None:
        stdout.print(f"Report: {out}")


@app.command("attend")
def attend(
    qkv: Qkv,
    out: Annotated[Path, typer.Option("--out", "-o", help="Write the tensor `output` here, as safetensors.")],
    params: Params = None,
    layer: Layer = None,
    theta: Theta = None,
    tau: Tau = None,
    topk: Topk = None,
    pv_threshold: Lambda = None,
    sink: Sink = False,
    block_q: BlockQ = None,
    block_k: BlockK = None,
    causal: Causal = None,
    int8: Quantize = False,
    backend: Backend = "auto",
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Run sparse attention on a file and write its output."""
    check_out(out, [qkv, params] if params else [qkv])
    from safetensors.torch import save_file

    from hexad.llm_efficiency.spargeattn.attention import sparge_attention

    chosen = choose_params(params, layer, theta, tau, topk, pv_threshold, sink, block_q, block_k)
    call = load(qkv, causal, device)
    check_heads(chosen, params, call, qkv)
    output, stats = sparge_attention(
        call.q,
        call.k,
        call.v,
        is_causal=call.is_causal,
        scale=call.scale,
        params=chosen,
        quantize=int8,
        backend=backend,
        return_stats=True,
    )
    with atomic_path(out) as temporary:
        save_file({"output": output.cpu().contiguous()}, temporary)
    report = describe(qkv, call) | {"out": str(out), "backend": stats.backend, "sparsity": stats.sparsity}
    if as_json:
        print_json(report)
    else:
        stdout.print(f"{out}: {stats.sparsity:.1%} skipped, backend {stats.backend}")


app.command("tune")(tune)
app.command("calibrate")(calibrate)
