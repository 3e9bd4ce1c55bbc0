"""The command line: `hexad vision-robustness costfilter-ad train | predict`."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from hexad.core.terminal import print_json, print_table, progress_bar, warnings_as_lines

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="CostFilter-AD: find defects by filtering the matching costs of an anomaly detector.",
)
stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of tables.")]


@app.command()
def train(
    source: Annotated[Path, typer.Argument(help="Folder with train/good, or with a folder of it a product.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the run; the same again goes on.")],
    detector: Annotated[
        Literal["templates", "reconstruction"],
        typer.Option(help="Compare patches with those of normal images, or with their reconstruction."),
    ] = "templates",
    templates: Annotated[int, typer.Option(help="Normal images to compare with, a product.")] = 4,
    image_size: Annotated[int, typer.Option(help="Side that images are scaled to; a multiple of 32.")] = 224,
    textures: Annotated[
        Path | None, typer.Option(help="Folder of foreign textures; default photographs of scikit-image.")
    ] = None,
    foreground: Annotated[
        Literal["all", "dark", "bright"], typer.Option(help="Where synthetic defects may lie.")
    ] = "all",
    samples: Annotated[int, typer.Option(help="Synthetic samples to train on.")] = 800,
    validation_samples: Annotated[int, typer.Option(help="Synthetic samples to choose on.")] = 160,
    steps: Annotated[int, typer.Option(help="Optimiser steps.")] = 600,
    batch_size: Annotated[int, typer.Option(help="Samples a step.")] = 8,
    lr: Annotated[float, typer.Option(help="Learning rate of Adam.")] = 1e-3,
    width: Annotated[int, typer.Option(help="Width of the network; 48 in the paper.")] = 16,
    k: Annotated[
        int | None,
        typer.Option(
            "--costs",
            "-k",
            help="Matching costs kept a position; 0 for all.",
            show_default="64, or all by position",
        ),
    ] = None,
    order: Annotated[
        Literal["rank", "position"],
        typer.Option(help="rank: the smallest of all templates; position: each template alone (the paper)."),
    ] = "rank",
    map_size: Annotated[int, typer.Option(help="Side of the cost volume; 64 in the paper.")] = 32,
    seed: Annotated[int, typer.Option(help="Of splits, anomalies and weights.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda ... of the training.")] = "auto",
    as_json: Json = False,
) -> None:
    """Train a filter on normal images alone; defects are synthetic, test images are not read.

    Writes OUT/model.safetensors. After Ctrl-C the same command goes on from the last checkpoint. The paper's
    own shape is --width 48 --order position --map-size 64, which wants a GPU.

    Examples:

        hexad vision-robustness costfilter-ad train tiles/ -o run/

        hexad vision-robustness costfilter-ad train mvtec/ -o run/ --detector reconstruction --steps 2000
    """
    from hexad.core.devices import find_device
    from hexad.vision_robustness.costfilter_ad.filter import FilterConfig
    from hexad.vision_robustness.costfilter_ad.fitting import FitConfig
    from hexad.vision_robustness.costfilter_ad.runs import RunConfig, train_folder

    if device not in ("auto", "cpu"):
        find_device(device.replace("gpu", "cuda"))
    if k is None:
        k = 64 if order == "rank" else 0
    config = RunConfig(
        detector=detector,
        image_size=image_size,
        templates=templates,
        samples=samples,
        validation_samples=validation_samples,
        foreground=foreground,
        textures=None if textures is None else str(textures),
        filter=FilterConfig(k=k or None, order=order, size=map_size, width=width),
        fit=FitConfig(
            steps=steps, parts=min(6, steps), batch_size=batch_size, lr=lr, seed=seed, accelerator=device
        ),
    )
    try:
        with progress_bar(stderr, "train", quiet=as_json) as tell, warnings_as_lines(stderr):
            report = train_folder(source, out, config, progress=tell)
    except KeyboardInterrupt:
        stderr.print(
            f"Interrupted: {out} keeps what is done; the same command goes on.", soft_wrap=True, markup=False
        )
        raise typer.Exit(130) from None
    if as_json:
        print_json(report)
        return
    chosen, validation = report["chosen"], report["validation"]
    stdout.print(
        f"{report['model']}: lam {chosen['lam']:g}, step {chosen['step']}; pixel AP on synthetic validation "
        f"images {validation['ap']:.3f}, the detector alone {validation['base_ap']:.3f}",
        soft_wrap=True,
        markup=False,
    )
    if chosen["lam"] == 0:
        stderr.print(
            "warning: the filter does not help on the validation images, so lam is 0 and the maps are the "
            "detector's own; try more --steps",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="model.safetensors, or the folder of the run.")],
    source: Annotated[Path, typer.Argument(help="Folder with test/, any folder of images, or one image.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write to.")],
    lam: Annotated[
        float | None, typer.Option(help="Weight of the filter in [0, 1]; default what training chose.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Of the masks; default what training chose.")
    ] = None,
    mask_threshold: Annotated[
        int | None, typer.Option(help="Cuts true masks that are not binary, at 127 as a rule.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Write the maps themselves too, as .npy.")] = False,
    as_json: Json = False,
) -> None:
    """Write a heat map, a mask and a score for every image, at the image's own size.

    OUT/heatmaps/*.png show the image with what was found outlined in red (and the truth in green) beside
    its heat map; OUT/scores.csv has a row an image. Where the folder tells good from bad (test/good,
    test/crack ..., ground_truth/crack ...) the quality is measured, beside that of the detector alone.
    Images that cannot be read are named, left out, and make the exit code 1.

    Examples:

        hexad vision-robustness costfilter-ad predict run/ tiles/ -o found/

        hexad vision-robustness costfilter-ad predict run/ photo.png -o found/ --json
    """
    from hexad.vision_robustness.costfilter_ad.predicting import predict_folder
    from hexad.vision_robustness.costfilter_ad.saving import load_filter

    loaded = load_filter(model / "model.safetensors" if model.is_dir() else model)
    loaded.with_mixture(lam=lam, threshold=threshold)
    try:
        with progress_bar(stderr, "predict", quiet=as_json) as tell, warnings_as_lines(stderr):
            report = predict_folder(
                loaded, source, out, raw=raw, mask_threshold=mask_threshold, progress=tell
            )
    except KeyboardInterrupt:
        stderr.print(f"Interrupted: pictures so far are in {out}.", soft_wrap=True, markup=False)
        raise typer.Exit(130) from None
    if as_json:
        print_json(report)
    else:
        if report["metrics"]:
            print_table(stdout, _table(report["metrics"]))
        plural = "" if report["images"] == 1 else "s"
        stdout.print(
            f"{report['images']} image{plural} judged; heatmaps/, masks/ and scores.csv are in {out}",
            soft_wrap=True,
            markup=False,
        )
    said = [f"note: {note}" for note in report["notes"]]
    said += [f"left out {reason}" for reason in report["unreadable"].values()]
    for line in said:
        stderr.print(line, style="yellow", markup=False, soft_wrap=True)
    if report["unreadable"]:
        raise typer.Exit(1)


def _table(metrics: dict[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("product", "map"):
        table.add_column(heading)
    for heading in ("image AUROC", "pixel AUROC", "pixel AP", "pixel F1", "PRO"):
        table.add_column(heading, justify="right")
    for product, both in metrics.items():
        for which in ("base", "filtered"):
            values = ["–" if value is None else f"{value:.3f}" for value in both[which].values()]
            table.add_row(product, which, *values)
    return table
