"""`hexad vision-robustness shufflemamba train`: folders of pictures in, a trained network out."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from hexad.core.errors import InputError, MissingExtraError
from hexad.core.files import writable_folder
from hexad.core.terminal import print_json, progress_bar
from hexad.core.validation import check_count

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of sentences.")]


def train(
    data: Annotated[
        Path,
        typer.Argument(
            help="Folder with train/CLASS/* and val/CLASS/*, or CLASS/*, of which --held-out is kept back; "
            "png, jpg, webp, bmp, tif or gif."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the run; goes on where it stopped.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="vim_slws_tiny, vim_slws_reg_small ..., or any model of timm.", show_default="vim_slws_micro"
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Checkpoint of Vim or Mamba-Reg, or a run, to start from instead of --model.",
            show_default="random",
        ),
    ] = None,
    class_position: Annotated[
        Literal["front", "middle"],
        typer.Option(
            help="Where a checkpoint of --weights has its class token, which it does not say: middle in "
            "Vim's published files, front in VisionMamba and ShuffleMamba. A run says it itself."
        ),
    ] = "middle",
    size: Annotated[
        int | None, typer.Option("--img-size", help="Side in pixels.", show_default="the model's")
    ] = None,
    held_out: Annotated[float, typer.Option(help="Share for validation where there is no val/.")] = 0.2,
    epochs: Annotated[int, typer.Option(help="Times every picture is seen.")] = 100,
    batch_size: Annotated[int, typer.Option(help="Pictures a step.")] = 64,
    lr: Annotated[float, typer.Option("--lr", help="Highest learning rate.")] = 1e-3,
    weight_decay: Annotated[float, typer.Option(help="Of AdamW.")] = 0.05,
    slws_rate: Annotated[
        float, typer.Option(help="Probability that the last block is shuffled; 0 trains without SLWS.")
    ] = 0.3,
    slws_schedule: Annotated[
        Literal["linear", "constant"], typer.Option(help="Of the blocks before the last.")
    ] = "linear",
    drop_path: Annotated[float, typer.Option(help="Stochastic depth of the last block.")] = 0.1,
    augment: Annotated[
        Literal["none", "light", "full"],
        typer.Option(help="full: RandAugment, erasing, mixup and cutmix, as the paper."),
    ] = "light",
    flip: Annotated[bool, typer.Option(help="Mirror half of the pictures; not for digits or text.")] = True,
    smoothing: Annotated[float, typer.Option(help="Of the labels.")] = 0.1,
    average: Annotated[
        float, typer.Option("--ema", help="Decay of the averaged weights, the result; 0 for the last ones.")
    ] = 0.999,
    seed: Annotated[int, typer.Option(help="Of weights, order, augmentation and shuffles.")] = 0,
    precision: Annotated[
        Literal["32-true", "bf16-mixed"], typer.Option(help="Of the arithmetic.")
    ] = "32-true",
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda ...")] = "auto",
    workers: Annotated[int, typer.Option(help="Processes that read pictures; 0 resumes bit for bit.")] = 0,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 200,
    as_json: Json = False,
) -> None:
    """Train a Vision Mamba (or any model of timm) on folders of pictures, with stochastic layer-wise shuffle.

    OUT gets model.safetensors, report.json, training.png and checkpoints. Ctrl-C ends the run after the step
    in hand, and the same command goes on from there.

    Examples:

        hexad vision-robustness shufflemamba train flowers --out run --img-size 32

        hexad vision-robustness shufflemamba train flowers --out run --model vim_slws_tiny --augment full

        hexad vision-robustness shufflemamba train flowers --out run --weights vim_t.pth --lr 1e-4
    """
    check_count("--workers", workers, 0)
    check_count("--checkpoint-every", checkpoint_every)
    if size is not None:
        check_count("--img-size", size)
    try:
        import lightning_fabric  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"training needs {error.name!r}, which is not installed; "
            'run: pip install "hexad-vision-robustness[shufflemamba]"'
        ) from error
    from hexad.core.devices import find_device
    from hexad.vision_robustness.shufflemamba.datasets import read_pictures
    from hexad.vision_robustness.shufflemamba.figures import draw_training
    from hexad.vision_robustness.shufflemamba.recipe import Recipe
    from hexad.vision_robustness.shufflemamba.starting import starting_point
    from hexad.vision_robustness.shufflemamba.training import Machine, fit

    recipe = Recipe(
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        weight_decay=weight_decay,
        slws_rate=slws_rate,
        slws_schedule=slws_schedule,
        drop_path=drop_path,
        augment=augment,
        flip=flip,
        smoothing=smoothing,
        average=average,
        seed=seed,
    )
    if accelerator not in ("auto", "cpu"):
        find_device(accelerator.replace("gpu", "cuda"))
    start = starting_point(model, weights, size, recipe, class_position)
    if out.resolve().is_relative_to(data.resolve()):
        raise InputError(f"--out {out} lies in the data folder; name another")
    with progress_bar(stderr, "pictures", quiet=as_json) as tell:
        pictures = read_pictures(data, held_out, tell)
    description = start.describe(pictures.classes)
    network = start.network(description, recipe)
    writable_folder(out, "--out")
    machine = Machine(accelerator, precision, workers, checkpoint_every)
    try:
        with progress_bar(stderr, "train", quiet=as_json) as tell:
            report = fit(description, pictures, recipe, out, machine, network=network, progress=tell)
    except KeyboardInterrupt:
        stderr.print(
            f"Interrupted: {out / 'checkpoints'} keeps what is done; the same command goes on from there.",
            soft_wrap=True,
            markup=False,
        )
        raise typer.Exit(130) from None
    draw_training(report, out / "training.png")
    if as_json:
        print_json(report)
        return
    stdout.print(
        f"{report['file']}: {report['validation']['top1']:.1%} of {report['validation']['pictures']} "
        f"validation pictures named rightly, {report['train']['top1']:.1%} of those trained on; curves in "
        f"{out / 'training.png'}",
        soft_wrap=True,
        markup=False,
    )
