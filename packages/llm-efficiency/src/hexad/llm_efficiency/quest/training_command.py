"""`hexad llm-efficiency quest train`: a folder of text in, a model trained with few bits out."""

import dataclasses
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from hexad.core.errors import InputError, MissingExtraError
from hexad.core.files import writable_folder, write_json
from hexad.core.terminal import print_json, progress_bar
from hexad.core.validation import check_count, check_folder, check_range

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float
    from torch import nn

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)

Size = Annotated[int | None, typer.Option(help="Of a new byte-level model.")]


def parse_bits(option: str, text: str) -> int | float | str | None:
    """`4`, `ternary`, `1.585`, `fp4` or `none`, as typed.

    Raises:
        InputError: another text.
    """
    from hexad.llm_efficiency.quest.grids import check_bits

    if text in ("none", "ternary", "fp4"):
        return None if text == "none" else text
    try:
        return check_bits(option, float(text))
    except ValueError:  # InputError is one
        raise InputError(
            f"{option} is {text!r}; give 1 to 8, ternary, fp4, or none for full precision"
        ) from None


def train(
    texts: Annotated[Path, typer.Argument(help="Folder of .txt files, with those in folders below.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the run.")],
    model: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a causal language model with its tokenizer to start from, read as float32.",
            show_default="new",
        ),
    ] = None,
    bits: Annotated[
        str | None,
        typer.Option(
            help="Of weights and activations: 1 to 8, ternary, fp4, none. A model that `train` wrote keeps "
            "its own.",
            show_default="4",
        ),
    ] = None,
    w_bits: Annotated[str | None, typer.Option(help="Of weights alone.", show_default="--bits")] = None,
    a_bits: Annotated[
        str | None, typer.Option(help="Of activations alone; none leaves them.", show_default="--bits")
    ] = None,
    skip: Annotated[
        str, typer.Option(help="Parts of the names of layers that stay in full precision, with commas.")
    ] = "lm_head,embed",
    steps: Annotated[int, typer.Option(help="Optimiser steps.")] = 1000,
    batch: Annotated[int, typer.Option(help="Windows a step.")] = 16,
    context: Annotated[int, typer.Option(help="Tokens predicted in a window.")] = 128,
    rate: Annotated[float, typer.Option("--lr", help="Highest learning rate.")] = 3e-3,
    hidden: Size = None,
    layers: Size = None,
    heads: Size = None,
    seed: Annotated[int, typer.Option(help="Of weights and order.")] = 0,
    precision: Annotated[
        Literal["32-true", "bf16-mixed"], typer.Option(help="Of the arithmetic.")
    ] = "32-true",
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda ...")] = "auto",
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 200,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for scripts instead of sentences.")
    ] = False,
) -> None:
    """Train a language model with quantised weights and activations.

    Without --model it is a small Llama over bytes, with the recipe of the paper. Every tenth file is held out
    to test on, or the last tenth of each where there are fewer than ten. The run's folder gets the
    model (RUN/model), its losses (RUN/loss.png, RUN/report.json) and checkpoints: Ctrl-C loses nothing that
    was checkpointed, and the same command goes on from there. Examples:

        hexad llm-efficiency quest train texts --out run --bits 2

        hexad llm-efficiency quest train texts --out run --model ./my-llama --w-bits 4 --a-bits 8 --lr 1e-4
    """
    for option, value in (("--steps", steps), ("--batch", batch), ("--context", context)):
        check_count(option, value)
    check_count("--seed", seed, 0)
    check_range("--lr", rate, 0, low_open=True)
    check_folder(texts, "text folder")
    if model is not None:
        check_folder(model, "model folder")
    given = any(option is not None for option in (bits, w_bits, a_bits))
    weights = parse_bits("--w-bits" if w_bits else "--bits", w_bits or bits or "4")
    activations = parse_bits("--a-bits" if a_bits else "--bits", a_bits or bits or "4")
    if weights is None and activations is not None:
        raise InputError("activations are rounded together with weights; give --w-bits, or --bits none")
    sizes = {"hidden": hidden, "layers": layers, "heads": heads}
    sized = [f"--{name}" for name, value in sizes.items() if value is not None]
    if model is not None and sized:
        raise InputError(f"--model {model} has its sizes; leave out {', '.join(sized)}")

    try:
        from hexad.core.training import TrainingConfig
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"training needs {error.name!r}, which is not installed; "
            'run: pip install "hexad-llm-efficiency[quest]"'
        ) from error
    from hexad.llm_efficiency.quest.config import QuestConfig
    from hexad.llm_efficiency.quest.language import check_model_folder
    from hexad.llm_efficiency.quest.texts import read_folder

    parts = tuple(part.strip() for part in skip.split(",") if part.strip())
    config = None if weights is None else QuestConfig(weights, activations, skip=parts)  # ty: ignore
    if model is not None:
        check_model_folder(model)
    raw = read_folder(texts)
    settings = TrainingConfig(
        steps=steps,
        batch_size=batch,
        seed=seed,
        checkpoint_every=checkpoint_every,
        clip_norm=1.0,
        accelerator=accelerator,
        precision=precision,
    )
    chosen = {name: value for name, value in sizes.items() if value is not None}
    report = run(raw, out, settings, config, model, context, rate, chosen, given=given, quiet=as_json)
    if as_json:
        print_json(report)
        return
    stdout.print(
        f"{report['model']}: {report['nats_per_byte']:.4f} nats a byte on text that was not trained on "
        f"(single tokens alone: {report['unigram_nats_per_byte']:.4f}); losses in {out / 'loss.png'}",
        soft_wrap=True,
    )


def run(
    raw: list[bytes],
    out: Path,
    settings: Any,
    config: Any,
    source: Path | None,
    context: int,
    rate: float,
    sizes: dict[str, int],
    *,
    given: bool,
    quiet: bool,
) -> dict[str, Any]:
    """Train, save and score; gives the report that RUN/report.json holds."""
    import torch

    from hexad.core.training import train as fit
    from hexad.llm_efficiency.quest.language import (
        Reader,
        check_context,
        check_vocabulary,
        load_model,
        load_reader,
        save_model,
        score,
    )
    from hexad.llm_efficiency.quest.layer import QuestLinear
    from hexad.llm_efficiency.quest.model import prepare, quantised_layers
    from hexad.llm_efficiency.quest.recipe import (
        byte_llama,
        make_optimizer,
        make_scheduler,
        next_token_loss,
    )
    from hexad.llm_efficiency.quest.texts import Windows, split_texts, unigram_entropy

    torch.manual_seed(settings.seed)
    # In half precisions most updates of the weights would be rounded away.
    wide = torch.float32
    network: Any = byte_llama(context=context, **sizes) if source is None else load_model(source, wide)
    vocabulary = network.config.vocab_size
    reader = Reader() if source is None else load_reader(source, vocabulary)
    check_context(network, context)
    read = [reader.read(text) for text in raw]
    training, test = split_texts(read, context)
    check_vocabulary(training, vocabulary)
    check_vocabulary(test, vocabulary)
    bytes_per_token = sum(map(len, raw)) / sum(map(len, read))
    if layers := quantised_layers(network):
        layer = next(iter(layers.values()))
        if not isinstance(layer, QuestLinear):
            raise InputError(f"the model in {source} is packed; train goes on with trainable ones alone")
        if given:
            raise InputError(
                f"the model in {source} is trained with {layer.config.w_bits} and {layer.config.a_bits} bits "
                "already; leave out --bits, --w-bits and --a-bits to go on with them"
            )
        config = layer.config
    # A run is gone on with by the same command alone.
    identity = {
        "--w-bits": None if config is None else config.w_bits,
        "--a-bits": None if config is None else config.a_bits,
        "--lr": rate,
        "--steps": settings.steps,
        "--skip": None if config is None else list(config.skip),
        "--context": context,
        "texts": hashlib.sha256(b"".join(hashlib.sha256(text).digest() for text in raw)).hexdigest()[:16],
        "--model and sizes": _digest(network),
    }
    if config is not None and not layers:
        network = prepare(network, config)
    writable_folder(out, "--out")
    optimizer = make_optimizer(network, rate)
    with progress_bar(stderr, "train", quiet=quiet) as progress:
        history = fit(
            network,
            optimizer,
            next_token_loss,
            Windows(training, context),
            settings,
            out / "checkpoints",
            scheduler=make_scheduler(optimizer, rate, settings.steps),
            progress=progress,
            identity=identity,
        )
    result = score(network, Windows(test, context), bytes_per_token, 512)
    folder = out / "model"
    save_model(network, reader, folder)
    report = {
        "model": str(folder),
        "config": None if config is None else config.to_dict(),
        "settings": dataclasses.asdict(settings) | {"context": context, "lr": rate},
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "train_tokens": len(training),
        "test_loss": result.loss,
        "nats_per_byte": result.nats_per_byte,
        "unigram_nats_per_byte": unigram_entropy(test) / bytes_per_token,
        "train_losses": [round(float(value), 5) for value in history],
    }
    write_json(out / "report.json", report)
    unit = "byte" if reader.tokenizer is None else "token"
    plot_losses(history, result.loss, unit, out / "loss.png")
    return report


def _digest(network: "nn.Module") -> str:
    """Of the first weights."""
    digest = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().float().numpy().tobytes())
    return digest.hexdigest()[:16]


def plot_losses(history: "Float[np.ndarray, ' steps']", test: float, unit: str, path: Path) -> None:
    """The training loss with its running mean, and the test loss at the end."""
    from hexad.core.plots import COLOURS, draw_losses, new_figure, save_figure

    figure, axis = new_figure(6.4, 3.8)
    draw_losses(axis, history, f"nats/{unit}")
    axis.plot([len(history)], [test], "o", color=COLOURS[1], label="text not trained on")
    axis.set_ylabel(f"loss [nats/{unit}]")
    axis.legend()
    save_figure(figure, path)
