"""`hexad llm-efficiency quest`: text in, a trained model of few bits out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from hexad.core.errors import InputError
from hexad.core.files import writable_folder
from hexad.core.terminal import print_json, progress_bar
from hexad.core.validation import check_count, check_folder
from hexad.llm_efficiency.quest.training_command import train

if TYPE_CHECKING:
    from torch import nn

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="QuEST: train language models with 1 to 4 bits for weights and activations, and pack them. "
    "Models are folders as transformers writes them; texts are folders of .txt files.",
)

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of sentences.")]
ModelFolder = Annotated[Path, typer.Argument(help="Folder of a model, such as RUN/model of `train`.")]


app.command("train")(train)


def _layers(model: "nn.Module") -> dict[str, Any]:
    """How a model is quantised, for reports."""
    from hexad.llm_efficiency.quest.model import quantised_layers

    layers = quantised_layers(model)
    if not layers:
        return {"kind": "full precision", "layers": 0}
    layer = next(iter(layers.values()))
    return {
        "kind": "packed" if type(layer).__name__ == "PackedLinear" else "trainable",
        "layers": len(layers),
        "w_bits": layer.config.w_bits,
        "a_bits": layer.config.a_bits,
    }


@app.command("export")
def export(
    model: ModelFolder,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write the packed model to.")],
    as_json: Json = False,
) -> None:
    """Pack a trained model: codes of few bits and a scale a row instead of weights.

    The folder loads with `from_pretrained` after `import hexad.llm_efficiency.quest.transformers`. Example:

        hexad llm-efficiency quest export run/model --out packed
    """
    check_folder(model, "model folder")
    if out.resolve() == model.resolve():
        raise InputError(f"--out {out} is the model itself; name another folder")
    if out.is_dir() and any(out.iterdir()):
        raise InputError(f"--out {out} is not empty; name a new folder")
    from hexad.llm_efficiency.quest.language import (
        check_model_folder,
        load_model,
        load_reader,
        nbytes,
        save_model,
    )
    from hexad.llm_efficiency.quest.model import convert
    from hexad.llm_efficiency.quest.packed import PackedLinear

    check_model_folder(model)
    loaded = load_model(model)
    if (found := _layers(loaded))["kind"] != "trainable":
        raise InputError(
            f"the model in {model} is {found['kind']}; export takes one that `quest train` wrote"
        )
    reader = load_reader(model, loaded.config.vocab_size)
    writable_folder(out, "--out")
    before = nbytes(loaded)
    packed = convert(loaded)
    save_model(packed, reader, out)
    layers = [module for module in packed.modules() if isinstance(module, PackedLinear)]
    whole = sum(4 * layer.in_features * layer.out_features for layer in layers)
    report: dict[str, Any] = {
        "out": str(out),
        **_layers(packed),
        "bytes_before": before,
        "bytes": nbytes(packed),
        "layer_bytes_float32": whole,
        "layer_bytes": sum(layer.nbytes for layer in layers),
    }
    if as_json:
        print_json(report)
        return
    stdout.print(
        f"{out}: {report['layers']} layers of {report['w_bits']} bits take {report['layer_bytes']:,} bytes, "
        f"1/{whole / report['layer_bytes']:.1f} of float32; the whole model {report['bytes']:,} bytes, "
        f"before {before:,}",
        soft_wrap=True,
    )


@app.command("eval")
def evaluate(
    model: ModelFolder,
    texts: Annotated[Path, typer.Argument(help="Folder of .txt files, with those in folders below.")],
    context: Annotated[int, typer.Option(help="Tokens predicted in a window.")] = 128,
    windows: Annotated[int, typer.Option(help="Most windows to read, at even distances.")] = 512,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Only the part of the text that `train` did not train on.")
    ] = False,
    device: Annotated[str, typer.Option(help="Device to run on: cpu, cuda ...")] = "cpu",
    as_json: Json = False,
) -> None:
    """Measure how well a model predicts a text: plain, trained with few bits, or packed.

    Example:

        hexad llm-efficiency quest eval packed texts --held-out
    """
    check_count("--context", context)
    check_count("--windows", windows)
    check_folder(model, "model folder")
    check_folder(texts, "text folder")
    import math

    import numpy as np

    from hexad.core.devices import find_device
    from hexad.llm_efficiency.quest.language import (
        check_context,
        check_model_folder,
        check_vocabulary,
        load_model,
        load_reader,
        score,
    )
    from hexad.llm_efficiency.quest.texts import Windows, read_folder, split_texts

    check_model_folder(model)
    raw = read_folder(texts)
    place = find_device(device)
    loaded = load_model(model)
    check_context(loaded, context)
    vocabulary = loaded.config.vocab_size
    reader = load_reader(model, vocabulary)
    read = [reader.read(text) for text in raw]
    tokens = split_texts(read, context)[1] if held_out else np.concatenate(read)
    check_vocabulary(tokens, vocabulary)
    bytes_per_token = sum(map(len, raw)) / max(1, sum(map(len, read)))
    with progress_bar(stderr, "eval", quiet=as_json) as progress:
        progress(0.0, str(model))
        result = score(loaded.to(place), Windows(tokens, context), bytes_per_token, windows)
    report: dict[str, Any] = {
        "model": str(model),
        **_layers(loaded),
        "loss": result.loss,
        "perplexity": math.exp(result.loss),
        "nats_per_byte": result.nats_per_byte,
        "windows": result.windows,
        "context": context,
    }
    if as_json:
        print_json(report)
        return
    kind = report["kind"]
    if report["layers"]:
        kind += f", {report['layers']} layers of {report['w_bits']} bits"
    stdout.print(
        f"{model} ({kind}): {result.nats_per_byte:.4f} nats a byte, perplexity {report['perplexity']:.3f} a "
        f"token, over {result.windows} windows of {context}",
        soft_wrap=True,
    )
