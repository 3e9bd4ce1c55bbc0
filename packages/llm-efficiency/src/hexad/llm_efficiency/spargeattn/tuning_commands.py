"""The commands that tune: a layer on files of q, k and v, a whole model on text."""

from pathlib import Path
from typing import Annotated, Any

import typer

from hexad.core.errors import InputError, MissingExtraError
from hexad.core.terminal import print_json, progress_bar
from hexad.core.validation import check_file, check_folder, check_range
from hexad.llm_efficiency.spargeattn.options import (
    Backend,
    BlockK,
    BlockQ,
    Causal,
    Device,
    Json,
    check_out,
    load,
    make_table,
    stderr,
    stdout,
)


def tune(
    qkv: Annotated[list[Path], typer.Option("--qkv", help="File to tune on; give at least five.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Write the parameters here.")],
    test: Annotated[list[Path] | None, typer.Option("--test", help="File to test on, not tuned on.")] = None,
    l1: Annotated[float, typer.Option(help="Relative L1 error allowed to the first filter.")] = 0.07,
    l2: Annotated[float, typer.Option(help="Relative L1 error allowed to both filters.")] = 0.08,
    second_filter: Annotated[bool, typer.Option(help="Tune the second filter too.")] = True,
    min_inputs: Annotated[int, typer.Option(help="Fewest files to accept.")] = 5,
    block_q: BlockQ = 128,
    block_k: BlockK = 64,
    causal: Causal = None,
    backend: Backend = "auto",
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Find theta, tau and lambda for each head of a layer from its recorded inputs.

    Example:

        hexad llm-efficiency spargeattn tune --qkv 1.safetensors --qkv 2.safetensors ... -o p.safetensors
    """
    tests = test or []
    check_out(out, [*qkv, *tests])
    if both := {path.resolve() for path in qkv} & {path.resolve() for path in tests}:
        raise InputError(f"{next(iter(both))} is to tune and to test on; a test needs inputs never tuned on")
    from hexad.llm_efficiency.spargeattn.tuning import SpargeTuner, score

    tuner = SpargeTuner(
        l1,
        l2,
        block_q=block_q,
        block_k=block_k,
        second_filter=second_filter,
        min_inputs=min_inputs,
        backend=backend,
    )
    for path in [*qkv, *tests]:
        check_file(path, "file of q, k and v")
    with progress_bar(stderr, "tune") as progress:
        found = tuner.fit([load(path, causal, device) for path in qkv], progress)
        found.save(out)
        scored = [(path, score(found, load(path, causal, device), backend=backend)) for path in tests]
    columns = {name: getattr(found, name) for name in ("theta", "tau", "pv_threshold")}
    heads = [
        {"head": head, "dense": bool(tuner.dense_[head]), "sparsity": float(tuner.sparsity_[head])}
        | {
            name: None if vector is None else round(float(vector[head]), 4)
            for name, vector in columns.items()
        }
        for head in range(found.heads or 0)
    ]
    report = {
        "out": str(out),
        "heads": heads,
        "tests": [
            {"qkv": str(path), "rel_l1": result.rel_l1.tolist(), "sparsity": result.sparsity.tolist()}
            for path, result in scored
        ],
    }
    if as_json:
        print_json(report)
        return
    table = make_table("head", "theta", "tau", "lambda", "sparsity")
    for row in heads:
        pv = row["pv_threshold"]
        values = (
            ("dense", "", "") if row["dense"] else (row["theta"], row["tau"], "off" if pv is None else pv)
        )
        table.add_row(str(row["head"]), *(str(value) for value in values), f"{row['sparsity']:.3f}")
    stdout.print(table)
    for path, result in scored:
        stdout.print(
            f"{path}: relative L1 {float(result.rel_l1.mean()):.4f} (worst head "
            f"{float(result.rel_l1.max()):.4f}), {float(result.sparsity.mean()):.1%} skipped"
        )
    stdout.print(f"Parameters: {out}")


def calibrate(
    model: Annotated[Path, typer.Argument(help="Folder of a transformers model with its tokenizer.")],
    texts: Annotated[list[Path], typer.Argument(help="Text files to tune on.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Write the parameters of all layers here.")],
    tokens: Annotated[int, typer.Option(help="Tokens in an input.")] = 2048,
    inputs: Annotated[int, typer.Option(help="Inputs to cut from the texts.")] = 5,
    l1: Annotated[float, typer.Option(help="Relative L1 error allowed to the first filter.")] = 0.07,
    l2: Annotated[float, typer.Option(help="Relative L1 error allowed to both filters.")] = 0.08,
    second_filter: Annotated[bool, typer.Option(help="Tune the second filter too.")] = True,
    block_q: BlockQ = 128,
    block_k: BlockK = 64,
    backend: Backend = "auto",
    as_json: Json = False,
) -> None:
    """Tune every layer and head of a model on text; `register(params=...)` reads the result.

    Example:

        hexad llm-efficiency spargeattn calibrate ./my-llama book.txt --tokens 4096 --out my-llama.safetensors
    """
    check_folder(model, "model folder")
    for path in texts:
        check_file(path, "text file")
    check_range("--tokens", tokens, 2)
    check_range("--inputs", inputs, 1)
    check_out(out, texts)
    import torch

    try:
        from transformers import AutoConfig, AutoModel, AutoTokenizer
    except ModuleNotFoundError:
        raise MissingExtraError(
            'calibrate needs transformers; run: pip install "hexad-llm-efficiency[transformers]"'
        ) from None
    from hexad.llm_efficiency.spargeattn import calibration
    from hexad.llm_efficiency.spargeattn.params import save_layers
    from hexad.llm_efficiency.spargeattn.tuning import SpargeTuner

    tuner = SpargeTuner(
        l1,
        l2,
        block_q=block_q,
        block_k=block_k,
        second_filter=second_filter,
        min_inputs=inputs,
        backend=backend,
    )
    try:
        config = AutoConfig.from_pretrained(model, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
        loaded = AutoModel.from_pretrained(model, local_files_only=True)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{model} is no folder of a transformers model: {str(error).splitlines()[0]}"
        ) from None
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and tokens > longest:
        raise InputError(f"--tokens is {tokens}; this model takes {longest} at most")
    batches = _cut(texts, tokenizer, tokens, inputs)
    with progress_bar(stderr, "calibrate") as progress:
        layers = calibration.calibrate(loaded, batches, tuner, progress)
    save_layers(layers, out)
    rows = [
        {
            "layer": layer,
            "heads": params.heads or 0,
            "sparse_heads": int((torch.as_tensor(params.theta) < 1).sum()),
        }
        for layer, params in layers.items()
    ]
    if as_json:
        print_json({"out": str(out), "layers": rows})
        return
    for row in rows:
        stdout.print(f"layer {row['layer']}: {row['sparse_heads']} of {row['heads']} heads sparse")
    stdout.print(f"Parameters: {out}")


def _cut(texts: list[Path], tokenizer: Any, tokens: int, inputs: int) -> list[Any]:
    """Full windows of `tokens` tokens from the texts, in their order."""
    import torch

    windows: list[Any] = []
    for path in texts:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise InputError(f"{path} is no text in UTF-8") from None
        ids = tokenizer(text, return_tensors="pt", verbose=False)["input_ids"]
        windows += (
            list(ids[:, : ids.shape[1] // tokens * tokens].split(tokens, dim=1))
            if ids.shape[1] >= tokens
            else []
        )
        if len(windows) >= inputs:
            return [window.to(torch.long) for window in windows[:inputs]]
    raise InputError(
        f"the texts hold {len(windows)} whole windows of {tokens} tokens, fewer than the {inputs} wanted; "
        "give more text, or lower --tokens or --inputs"
    )
