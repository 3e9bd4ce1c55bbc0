"""`hexad vision-robustness shufflemamba train`: folders of pictures in, a trained network out."""

from pathlib import Path
from typing import Annotated, Any, Literal

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
            help="Folder with train/CLASS/* and val/CLASS/*, or CLASS/*, of which --held-out is kept back."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the run; goes on where it stopped.")],
    model: Annotated[
        str, typer.Option(help="vim_slws_micro, vim_slws_tiny ..., or any model of timm.")
    ] = "vim_slws_micro",
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Checkpoint of Vim or Mamba-Reg to start from; it says the sizes, so --model is not needed.",
            show_default="random",
        ),
    ] = None,
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
    from hexad.vision_robustness.shufflemamba.datasets import read_pictures
    from hexad.vision_robustness.shufflemamba.figures import draw_training
    from hexad.vision_robustness.shufflemamba.recipe import Recipe
    from hexad.vision_robustness.shufflemamba.storage import device_of
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
        device_of(accelerator.replace("gpu", "cuda"))
    describe = _describer(model, weights, size, recipe)
    if out.resolve().is_relative_to(data.resolve()):
        raise InputError(f"--out {out} lies in the data folder; name another")
    with progress_bar(stderr, "pictures", quiet=as_json) as tell:
        pictures = read_pictures(data, held_out, tell)
    description, network = describe(pictures.classes)
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


def _try_blocks(network: Any, side: int) -> None:
    """Run a network once with every block shuffled, so that one that cannot be is refused now."""
    import torch

    from hexad.vision_robustness.shufflemamba.wrapping import apply_slws

    apply_slws(network, 1.0, lambda place: 1.0).train()
    with torch.no_grad():
        network(torch.zeros(2, 3, side, side))


def _describer(model: str, weights: Path | None, size: int | None, recipe: Any) -> Any:
    """A function of the class names that gives the network's description and, from --weights, the network.

    What is wrong with the model is said here, before the pictures are read.
    """
    import timm
    import torch

    from hexad.vision_robustness.shufflemamba import registry
    from hexad.vision_robustness.shufflemamba.checkpoints import load_official, read_weights, sizes_of
    from hexad.vision_robustness.shufflemamba.recipe import MEAN, STD
    from hexad.vision_robustness.shufflemamba.storage import Description, check_model

    rates = {"drop_path_rate": recipe.drop_path} if recipe.drop_path else {}
    if weights is None:
        config = timm.models.get_pretrained_cfg(check_model(model))
        side = size or int(config.input_size[-1] if config else 224)
        name = model
        arguments: dict[str, Any] = rates | {"img_size": side}
        try:
            with torch.device("meta"):  # no memory, no time
                timm.create_model(name, num_classes=2, **arguments)
        except TypeError:
            arguments = dict(rates)  # convolutional networks take any size, and do not ask
        if recipe.slws_rate and name not in registry.default_cfgs:
            _try_blocks(timm.create_model(name, num_classes=2, **arguments), side)
    else:
        name, arguments = "", sizes_of(read_weights(weights)) | rates
        if arguments["in_chans"] != 3:
            raise InputError(f"{weights} takes {arguments['in_chans']} channels; pictures are read in colour")
        side = size or arguments["img_size"][0]
        arguments["img_size"] = side

    def describe(classes: tuple[str, ...]) -> tuple[Description, Any]:
        crop = 0.9 if side >= 128 else 1.0
        made = Description(name, arguments, list(classes), side, list(MEAN), list(STD), crop)
        if weights is None:
            return made, None
        torch.manual_seed(recipe.seed)
        given = {"slws_rate": recipe.slws_rate, "slws_schedule": recipe.slws_schedule}
        return made, load_official(weights, num_classes=len(classes), img_size=side, **rates, **given)

    return describe
