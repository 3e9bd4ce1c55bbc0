"""The command line: `hexad vision-robustness laion-c apply | evaluate | preview | tiles`."""

import dataclasses
import signal
from pathlib import Path
from typing import Annotated, Literal

import typer
from PIL import Image
from rich.console import Console

from hexad.core.environment import cores
from hexad.core.errors import InputError
from hexad.core.terminal import print_json, progress_bar, warnings_as_lines
from hexad.core.validation import check_file, check_folder
from hexad.vision_robustness.laion_c.interrupts import terminate_as_interrupt
from hexad.vision_robustness.laion_c.terminal import print_accuracy, print_applied

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="LAION-C: distort images in six ways at five intensities, and score classifiers on them.",
)
stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)

LARGE = (Image.DecompressionBombWarning,)
"""A large photograph is meant; beyond twice the size that Pillow warns of, it raises."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of tables.")]
Seed = Annotated[int, typer.Option(help="Every output's seed is made of this, its path, type and level.")]
Tiles = Annotated[
    str,
    typer.Option(
        help="Tiles of mosaics and stickers: a folder of 100 photographs or more, a saved bank (.npz), or "
        "auto, source (the images themselves), packaged (photographs of the study extra)."
    ),
]


@app.command()
def apply(
    source: Annotated[Path, typer.Argument(help="Folder of images; nothing in it is changed.")],
    target: Annotated[Path, typer.Argument(help="Output folder.")],
    types: Annotated[str, typer.Option(help="Distortions, separated by commas, or all.")] = "all",
    levels: Annotated[str, typer.Option(help="Intensities, such as 1-5 or 1,3,5.")] = "1-5",
    size: Annotated[
        Literal["benchmark", "keep"],
        typer.Option(help="benchmark: cut to 224 x 224 first; keep: distort at the image's own size."),
    ] = "benchmark",
    tiles: Tiles = "auto",
    seed: Seed = 0,
    glitch_seed: Annotated[
        str, typer.Option(help="Seed of the glitches, the benchmark's 1 for all images, or per-image.")
    ] = "1",
    image_format: Annotated[
        Literal["jpeg", "png"], typer.Option("--format", help="jpeg (quality 100, as the benchmark) or png.")
    ] = "jpeg",
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", help="Worker processes; default one a processor.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first unreadable image.")] = False,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Use an output folder that holds other files or other settings."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Distort a folder of images.

    The results are TARGET/<type>/intensity_level_<k>/<folders of the source>/<name>_<type>_<k>.JPEG and a
    manifest.json with settings, seeds and hashes. The same command again makes only what is missing. Images
    that cannot be read are named, skipped, and make the exit code 1.

    Examples:

        hexad vision-robustness laion-c apply photos/ out/

        hexad vision-robustness laion-c apply photos/ out/ --types mosaic,stickers --levels 1,3,5 --size keep
    """
    from hexad.vision_robustness.laion_c.distortions import DISTORTIONS
    from hexad.vision_robustness.laion_c.folders import apply_folder
    from hexad.vision_robustness.laion_c.workers import ApplyConfig

    config = ApplyConfig(
        types=tuple(DISTORTIONS) if types == "all" else tuple(_split(types)),
        levels=_levels(levels),
        size=size,
        seed=seed,
        glitch_seed=None if glitch_seed == "per-image" else _integer("--glitch-seed", glitch_seed),
        format=image_format,
        tiles=tiles,
    )
    with terminate_as_interrupt() as terminated:
        try:
            with progress_bar(stderr, "distort", quiet=as_json) as tell, warnings_as_lines(stderr, LARGE):
                summary = apply_folder(
                    source,
                    target,
                    config,
                    jobs=cores() if jobs is None else jobs,
                    strict=strict,
                    overwrite=overwrite,
                    progress=lambda done, total, note: tell(done / total, f"{done} of {total}, {note[-40:]}"),
                )
        except KeyboardInterrupt:
            # All is kept; what a second Ctrl-C could still change is this message and the exit code.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            stderr.print(
                f"Interrupted: what is finished is kept in {target}; the same command goes on from there.",
                soft_wrap=True,
                markup=False,
            )
            # As a shell counts them: 128 and the number of the signal.
            raise typer.Exit(143 if terminated() else 130) from None
    if as_json:
        print_json(dataclasses.asdict(summary) | {"folder": str(summary.folder)})
    else:
        print_applied(stdout, summary)
    for name, reason in summary.skipped.items():
        stderr.print(f"skipped {name}: {reason}", style="yellow", markup=False, soft_wrap=True)
    if summary.skipped:
        plural = "" if len(summary.skipped) == 1 else "s"
        stderr.print(f"{len(summary.skipped)} source{plural} could not be read", style="yellow")
        raise typer.Exit(1)


@app.command()
def evaluate(
    root: Annotated[
        Path | None,
        typer.Argument(help="Labelled folder: <type>/intensity_level_<k>/<superclass>/*, or <superclass>/*."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="timm:NAME,CHECKPOINT; FILE.pt2; a TorchScript file; or package.module:function."),
    ] = None,
    preds: Annotated[
        Path | None, typer.Option(help="Instead of a model: .npz with paths and logits or probs.")
    ] = None,
    clean: Annotated[Path | None, typer.Option(help="Folder <superclass>/* of undistorted images.")] = None,
    mapping: Annotated[
        Path | None, typer.Option(help="JSON: classes of each superclass. Default: the 16 of LAION-C.")
    ] = None,
    class_index: Annotated[
        Path | None, typer.Option(help="JSON: number of each class that the mapping names.")
    ] = None,
    mean: Annotated[str | None, typer.Option(help="Channel means, such as 0.485,0.456,0.406.")] = None,
    std: Annotated[str | None, typer.Option(help="Channel deviations.")] = None,
    input_size: Annotated[int | None, typer.Option(help="Side of the network's input in pixels.")] = None,
    batch_size: Annotated[int, typer.Option(help="Images at a time.")] = 64,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda ...")] = "auto",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the CSV, JSON and PNG files.")] = Path(
        "laion-c-report"
    ),
    as_json: Json = False,
) -> None:
    """Score a classifier by superclass accuracy, by distortion and intensity.

    Normalisation and input size are the model's own where it says them (timm), else --mean, --std and
    --input-size. Weights come from local files alone.

    Examples:

        hexad vision-robustness laion-c evaluate out/ --model timm:resnet50,resnet50.safetensors

        hexad vision-robustness laion-c evaluate --preds preds.npz
    """
    _check_given(root, model, preds)
    from hexad.core.files import writable_folder
    from hexad.vision_robustness.laion_c.evaluate import evaluate_folder, evaluate_predictions
    from hexad.vision_robustness.laion_c.folders import check_place
    from hexad.vision_robustness.laion_c.scoring import SuperclassMapper
    from hexad.vision_robustness.laion_c.superclasses import SUPERCLASSES

    mapper = SuperclassMapper(SUPERCLASSES if mapping is None else mapping, class_index)
    _check_outside(out, (root, clean))
    # Known before the images are classified, not after.
    check_place(out, "report folder")
    if preds is not None:
        evaluation = evaluate_predictions(preds, mapper)
    else:
        from hexad.vision_robustness.laion_c.models import load_classifier

        assert model is not None
        assert root is not None
        check_folder(root, "labelled folder")
        classifier = load_classifier(
            model, mean=_triple("--mean", mean), std=_triple("--std", std), size=input_size, device=device
        )
        with progress_bar(stderr, "classify", quiet=as_json) as tell, warnings_as_lines(stderr, LARGE):
            evaluation = evaluate_folder(
                classifier,
                root,
                mapper,
                clean=clean,
                batch_size=batch_size,
                progress=lambda done, total: tell(done / total, f"{done} of {total}"),
            )
    writable_folder(out, "report folder")
    files = evaluation.write(out)
    summary = evaluation.summary()
    if as_json:
        print_json(summary | {"files": [str(path) for path in files]})
    else:
        print_accuracy(stdout, summary)
        stdout.print(f"Files: {', '.join(str(path) for path in files)}", soft_wrap=True, markup=False)


@app.command()
def preview(
    image: Annotated[Path, typer.Argument(help="An image.")],
    target: Annotated[Path, typer.Argument(help="PNG file to write.")],
    tiles: Tiles = "auto",
    seed: Seed = 0,
) -> None:
    """Draw one image under all thirty distortions."""
    from hexad.core.files import atomic_path, writable_folder
    from hexad.vision_robustness.images import read_image
    from hexad.vision_robustness.laion_c.figures import contact_sheet
    from hexad.vision_robustness.laion_c.folders import check_place
    from hexad.vision_robustness.laion_c.tile_sources import make_bank

    if target.suffix.lower() != ".png":
        raise InputError(f"the picture is written as .png, not {target.name!r}")
    if target.resolve() == image.resolve():
        raise InputError(f"{target} is the input itself; name another file")
    check_place(target.parent, "folder")
    pixels, _ = read_image(check_file(image, "image"))
    with progress_bar(stderr, "distort") as tell, warnings_as_lines(stderr, LARGE):
        tell(0, "tiles")
        bank, described = make_bank(tiles, image.parent, [image])
        sheet = contact_sheet(
            pixels, bank, seed, progress=lambda done, total: tell(done / total, f"{done} of {total} rows")
        )
    writable_folder(target.parent, "folder")
    with atomic_path(target) as temporary:
        Image.fromarray(sheet).save(temporary, "PNG")
    stdout.print(
        f"{target} written; tiles: {described['count']} {described['from']}", soft_wrap=True, markup=False
    )


@app.command("tiles")
def save_tiles(
    source: Annotated[Path, typer.Argument(help="Folder of at least 100 photographs.")],
    target: Annotated[Path, typer.Argument(help="Bank to write (.npz).")],
    limit: Annotated[int, typer.Option(help="Photographs to take at most.")] = 100_000,
) -> None:
    """Make a bank of tiles once, for --tiles."""
    from hexad.core.files import writable_folder
    from hexad.vision_robustness.laion_c.folders import check_place
    from hexad.vision_robustness.laion_c.tiles import TileBank

    if target.suffix != ".npz":
        raise InputError(f"a tile bank is saved as .npz, not {target.name!r}")
    if limit < 1:
        raise InputError(f"--limit is {limit}; it must be at least 1")
    check_place(target.parent, "folder")
    with progress_bar(stderr, "tiles") as tell, warnings_as_lines(stderr, LARGE):
        bank = TileBank.from_folder(source, limit=limit, progress=lambda part: tell(part, ""))
    writable_folder(target.parent, "folder")
    bank.save(target)
    sizes = ", ".join(map(str, bank.sizes))
    stdout.print(f"{target}: {len(bank)} tiles of {sizes} pixels", soft_wrap=True, markup=False)


def _check_given(root: Path | None, model: str | None, preds: Path | None) -> None:
    if (model is None) == (preds is None):
        raise InputError(
            "give either a folder and --model (timm:NAME,CHECKPOINT; FILE.pt2; a TorchScript file; or "
            "package.module:function), or --preds FILE.npz"
        )
    if model is not None and root is None:
        raise InputError("--model needs a labelled folder")
    if preds is not None and root is not None:
        raise InputError("--preds names its images itself; leave out the folder")


def _check_outside(out: Path, scored: tuple[Path | None, ...]) -> None:
    for folder in scored:
        if folder is not None and out.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"report folder {out} lies in {folder}, which is scored; name another by --out")


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _integer(what: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{what} is {text!r}; it must be an integer") from None


def _levels(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in _split(text):
        first, dash, last = part.partition("-")
        begin = _integer("--levels", first)
        found.extend(range(begin, _integer("--levels", last) + 1) if dash else [begin])
    if not found:
        raise InputError(f"--levels {text!r} names none; write 1-5 or 1,3,5")
    return tuple(found)


def _triple(what: str, text: str | None) -> tuple[float, float, float] | None:
    if text is None:
        return None
    try:
        first, second, third = (float(part) for part in _split(text))
    except ValueError:
        raise InputError(f"{what} is {text!r}; it must be three numbers, such as 0.5,0.5,0.5") from None
    return first, second, third
