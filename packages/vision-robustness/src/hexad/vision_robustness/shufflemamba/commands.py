"""`hexad vision-robustness shufflemamba`: train a Vision Mamba, score it, and name pictures with it."""

import csv
import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from hexad.core.errors import InputError
from hexad.core.files import atomic_open, writable_file
from hexad.core.terminal import print_json, progress_bar
from hexad.core.validation import check_count
from hexad.vision_robustness.shufflemamba.training_command import Json, train

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="ShuffleMamba: train Vision Mamba networks with stochastic layer-wise shuffle (SLWS).",
)
stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)

Run = Annotated[Path, typer.Argument(help="Folder of a run of `train`, or its model.safetensors.")]
Batch = Annotated[int, typer.Option(help="Pictures at a time.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda ...")]

app.command("train")(train)


@app.command("eval")
def evaluate(
    run: Run,
    data: Annotated[Path, typer.Argument(help="Labelled pictures, CLASS/*, such as DATA/val.")],
    forced_shuffle: Annotated[
        float,
        typer.Option(
            help="Score again with the tokens of this share of the blocks shuffled, from the last: how much "
            "does the network need their order?"
        ),
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the forced shuffle.")] = 0,
    batch_size: Batch = 128,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Score a trained network on labelled pictures.

    Example:

        hexad vision-robustness shufflemamba eval run flowers/val --forced-shuffle 0.5
    """
    check_count("--batch-size", batch_size)
    check_count("--seed", seed, 0)
    import torch

    from hexad.core.devices import find_device
    from hexad.core.validation import check_range
    from hexad.vision_robustness.shufflemamba.datasets import read_labelled
    from hexad.vision_robustness.shufflemamba.storage import load_network
    from hexad.vision_robustness.shufflemamba.training import predict, score_of
    from hexad.vision_robustness.shufflemamba.wrapping import forced_shuffle as shuffled

    check_range("--forced-shuffle", forced_shuffle, 0, 1)
    place = find_device(device)
    network, description = load_network(run)
    with progress_bar(stderr, "pictures", quiet=as_json) as tell:
        pictures = read_labelled(data, description.classes, tell)
    options: dict[str, Any] = {"batch_size": batch_size, "device": place}
    with progress_bar(stderr, "eval", quiet=as_json) as tell:
        scores, labels = predict(network, pictures, description, progress=tell, **options)
    report: dict[str, Any] = {"run": str(run), "data": str(data)} | dataclasses.asdict(
        score_of(scores, labels)
    )
    right = scores.argmax(1) == labels
    report["classes"] = {
        name: {"top1": float(right[labels == label].mean()), "pictures": int((labels == label).sum())}
        for label, name in enumerate(description.classes)
        if (labels == label).any()
    }
    if forced_shuffle:
        generator = torch.Generator().manual_seed(seed)
        with (
            shuffled(network, forced_shuffle, generator=generator),
            progress_bar(stderr, "eval, shuffled", quiet=as_json) as tell,
        ):
            scores, labels = predict(network, pictures, description, progress=tell, **options)
        report["forced_shuffle"] = {"blocks": forced_shuffle} | dataclasses.asdict(score_of(scores, labels))
    if as_json:
        print_json(report)
        return
    text = f"{run}: {report['top1']:.1%} of {report['pictures']} pictures named rightly"
    text += f", loss {report['loss']:.4f}"
    if forced_shuffle:
        text += (
            f"; with the last {forced_shuffle:.0%} of the blocks shuffled "
            f"{report['forced_shuffle']['top1']:.1%}"
        )
    stdout.print(text, soft_wrap=True, markup=False)


@app.command("predict")
def predict_pictures(
    run: Run,
    source: Annotated[Path, typer.Argument(help="A picture, or a folder of pictures, searched through.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="CSV to write.")] = Path("predictions.csv"),
    top: Annotated[int, typer.Option(help="Classes to name for each picture.")] = 1,
    batch_size: Batch = 128,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Name pictures: a CSV with path, class and probability, and with --top more classes in further columns.

    Pictures that cannot be read are named, left out, and make the exit code 1. Example:

        hexad vision-robustness shufflemamba predict run holiday/ --out names.csv --top 3
    """
    check_count("--top", top)
    check_count("--batch-size", batch_size)
    import torch

    from hexad.core.devices import find_device
    from hexad.vision_robustness.shufflemamba.datasets import PlainPictures
    from hexad.vision_robustness.shufflemamba.storage import load_network
    from hexad.vision_robustness.shufflemamba.training import predict

    place = find_device(device)
    network, description = load_network(run)
    with progress_bar(stderr, "pictures", quiet=as_json) as tell:
        pictures = PlainPictures(source, tell)
    target = writable_file(out, "--out")
    if target.resolve() in {path.resolve() for path in pictures.paths}:
        raise InputError(f"--out {out} is one of the pictures; name another file")
    with progress_bar(stderr, "predict", quiet=as_json) as tell:
        scores, _ = predict(
            network, pictures, description, batch_size=batch_size, device=place, progress=tell
        )
    best = torch.from_numpy(scores).softmax(1).topk(min(top, scores.shape[1]), 1)
    names = ["path"]
    for rank in range(1, best.indices.shape[1] + 1):
        names += [f"class_{rank}", f"probability_{rank}"] if rank > 1 else ["class", "probability"]
    rows: list[list[str | float]] = []
    for path, labels, shares in zip(pictures.paths, *(part.tolist() for part in best[::-1]), strict=True):
        row: list[str | float] = [str(path)]
        for label, share in zip(labels, shares, strict=True):
            row += [description.classes[label], round(share, 6)]
        rows.append(row)
    with atomic_open(target) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)
    if as_json:
        found = [dict(zip(names, row, strict=True)) for row in rows]
        print_json({"file": str(target), "pictures": found, "unreadable": pictures.unreadable})
    else:
        stdout.print(f"{target}: {len(rows)} pictures", soft_wrap=True, markup=False)
    for path, reason in pictures.unreadable.items():
        stderr.print(f"left out {path}: {reason}", style="yellow", markup=False, soft_wrap=True)
    if pictures.unreadable:
        raise typer.Exit(1)
