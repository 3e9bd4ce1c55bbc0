"""The commands that tune: a layer on files of q, k and v, a whole model on text."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hexad.core.errors import InputError, MissingExtraError
from hexad.core.terminal import make_table, print_json, print_table, progress_bar
from hexad.core.validation import check_file, check_folder, check_range
from hexad.llm_efficiency.spargeattn.options import (
    Backend,
    BackendName,
    BlockK,
    BlockQ,
    Causal,
    Device,
    Json,
    check_different,
    check_out,
    load,
    stderr,
    stdout,
)

if TYPE_CHECKING:
    from hexad.llm_efficiency.spargeattn.tuning import SpargeTuner

L2 = Annotated[
    float | None, typer.Option(help="Relative L1 error allowed to both filters.", show_default="0.08")
]


def tune(
    qkv: Annotated[list[Path], typer.Option("--qkv", help="File to tune on; give at least five.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Write the parameters here.")],
    test: Annotated[list[Path] | None, typer.Option("--test", help="File to test on, not tuned on.")] = None,
    l1: Annotated[float, typer.Option(help="Relative L1 error allowed to the first filter.")] = 0.07,
    l2: L2 = None,
    second_filter: Annotated[bool, typer.Option(help="Tune the second filter too.")] = True,
    min_inputs: Annotated[int, typer.Option(help="Fewest files to accept.")] = 5,
    block_q: BlockQ = None,
    block_k: BlockK = None,
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
    check_different("--qkv", qkv, "inputs that differ are pooled")
    check_different("--test", tests, "once is enough")
    if both := {path.resolve() for path in qkv} & {path.resolve() for path in tests}:
        raise InputError(f"{next(iter(both))} is to tune and to test on; a test needs inputs never tuned on")
    from hexad.llm_efficiency.spargeattn.scoring import score

    tuner = _tuner(l1, l2, second_filter, min_inputs, block_q, block_k, backend)
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
    print_table(stdout, table)
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
    l2: L2 = None,
    second_filter: Annotated[bool, typer.Option(help="Tune the second filter too.")] = True,
    block_q: BlockQ = None,
    block_k: BlockK = None,
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
    check_different("the command", texts, "inputs that differ are pooled")
    check_out(out, texts)
    _spare_the_model(out, model)
    import torch
    from safetensors import SafetensorError

    try:
        from transformers import AutoConfig, AutoModel, AutoTokenizer
    except ModuleNotFoundError:
        raise MissingExtraError(
            'calibrate needs transformers; run: pip install "hexad-llm-efficiency[transformers]"'
        ) from None
    from hexad.llm_efficiency.spargeattn import calibration
    from hexad.llm_efficiency.spargeattn.params import save_layers

    tuner = _tuner(l1, l2, second_filter, inputs, block_q, block_k, backend)
    try:
        config = AutoConfig.from_pretrained(model, local_files_only=True)
    except (OSError, ValueError) as error:
        raise InputError(f"{model} is no folder of a transformers model: {_first_line(error)}") from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    except Exception as error:  # each tokenizer fails in its own way
        raise InputError(
            f"{model} holds a model but no tokenizer that loads ({_first_line(error)}); save it there with "
            "tokenizer.save_pretrained"
        ) from None
    try:
        loaded = AutoModel.from_pretrained(model, local_files_only=True)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise InputError(f"the weights in {model} do not load: {_first_line(error)}") from None
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


def _tuner(
    l1: float,
    l2: float | None,
    second_filter: bool,
    min_inputs: int,
    block_q: int | None,
    block_k: int | None,
    backend: BackendName,
) -> "SpargeTuner":
    """The tuner that these options ask for."""
    from hexad.llm_efficiency.spargeattn.tuning import SpargeTuner

    if l2 is not None and not second_filter:
        raise InputError("--l2 bounds the second filter, which --no-second-filter leaves out; give one")
    given: dict[str, Any] = {"l2": l2, "block_q": block_q, "block_k": block_k}
    return SpargeTuner(
        l1,
        second_filter=second_filter,
        min_inputs=min_inputs,
        backend=backend,
        **{name: value for name, value in given.items() if value is not None},
    )


def _spare_the_model(out: Path, model: Path) -> None:
    """Refuse to write parameters over a file of the model; older parameters may lie beside it."""
    from hexad.llm_efficiency.spargeattn.params import load_layers

    if out.exists() and out.resolve().parent == model.resolve():
        try:
            load_layers(out)
        except InputError:
            raise InputError(f"--out {out} is a file of the model; choose another name") from None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


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
