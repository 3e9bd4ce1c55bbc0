"""What the study is measured on: photographed surfaces, and defects of two kinds.

Each quarter of a photograph has one use: templates, training, validation, test. Where crops of two uses share
pixels, normal patches cost next to nothing, and a filter that is chosen so fails on others. Synthetic
defects of the method's own generator test what was trained; pasted coins, scratches and local blur test what
was not.
"""

import functools
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from PIL import Image, ImageDraw
from scipy.ndimage import gaussian_filter, label, rotate, zoom
from torch import Tensor

from hexad.vision_robustness.costfilter_ad.detectors import FeatureReconstruction, TemplateMatching
from hexad.vision_robustness.costfilter_ad.features import Lite0Features
from hexad.vision_robustness.costfilter_ad.runs import VARIANCES
from hexad.vision_robustness.costfilter_ad.samples import SampleBank, make_samples
from hexad.vision_robustness.costfilter_ad.synthetic import SyntheticAnomaly
from hexad.vision_robustness.costfilter_ad.textures import packaged, packaged_textures

SIDE = 128
QUARTERS = {"templates": (0, 0), "training": (1, 0), "validation": (0, 1), "test": (1, 1)}
"""Row and column of the quarter of a photograph that each use has."""
TEMPLATES = 4
FITTED = 16
"""Crops of a surface that a reconstruction is fitted to."""
KINDS = ("coin", "scratch", "blur")

Pixels = Float[np.ndarray, "128 128 3"]
Mask = Bool[np.ndarray, "128 128"]


@dataclass(frozen=True)
class Config:
    """Size of the study.

    Args:
        surfaces: photographs, each a product class of one filter.
        samples: synthetic samples to train on, a surface.
        validation: synthetic samples to choose on, a surface.
        good: normal test images, a surface.
        defective: test images of either kind with a defect, a surface.
        steps: of training.
        batch_size: samples a step.
        parts: of training, after each of which the filter is judged on the validation samples.
    """

    surfaces: tuple[str, ...]
    samples: int
    validation: int
    good: int
    defective: int
    steps: int
    batch_size: int
    parts: int


@dataclass(frozen=True)
class Prepared:
    """Everything of a seed that all arms share."""

    templates: TemplateMatching
    reconstructions: list[FeatureReconstruction]
    training: SampleBank
    validation: SampleBank
    tests: dict[str, SampleBank]


@functools.lru_cache(maxsize=3)
def prepare(config: Config, seed: int) -> Prepared:
    """Crops, samples and features of a seed; kept, so that arms in one process share them."""
    extractor = Lite0Features()
    generator = np.random.default_rng(seed)
    surfaces = [packaged(f"{name}.png") for name in config.surfaces]
    training = _crops(surfaces, "training", config.samples, generator)
    validation = _crops(surfaces, "validation", config.validation, generator)
    by_class = [torch.stack(images) for images in _crops(surfaces, "templates", TEMPLATES, generator)]
    detector = TemplateMatching.fit(extractor, by_class)
    fitted = [torch.stack(images[:FITTED]) for images in training]
    reconstructions = FeatureReconstruction.fit_each(extractor, fitted, VARIANCES)
    anomaly = SyntheticAnomaly(packaged_textures())

    def synthetic(crops: list[list[Tensor]], count: int, number: int, always: bool = False) -> SampleBank:
        images, classes = _in_turn(crops)
        made = SyntheticAnomaly(anomaly.textures, 1.0) if always else anomaly
        return make_samples(detector, images, classes, made, count * len(crops), 10 * seed + number)

    good = _in_turn(_crops(surfaces, "test", config.good, generator))
    clean = make_samples(detector, *good, SyntheticAnomaly(probability=0, p_texture=0), len(good[0]), 0)
    held = _crops(surfaces, "test", config.defective, generator)
    tests = {
        "good": clean,
        "same": synthetic(held, config.defective, 3, always=True),
        "cross": _foreign(detector, held, generator),
    }
    return Prepared(
        detector,
        reconstructions,
        synthetic(training, config.samples, 1),
        synthetic(validation, config.validation, 2),
        tests,
    )


def _crops(surfaces: list, use: str, count: int, generator: np.random.Generator) -> list[list[Tensor]]:
    """Random crops of the quarter of each surface that a use has."""
    found = []
    row, column = QUARTERS[use]
    for pixels in surfaces:
        height, width = (side // 2 for side in pixels.shape[:2])
        part = pixels[row * height : (row + 1) * height, column * width : (column + 1) * width]
        tops = generator.integers(0, part.shape[0] - SIDE + 1, count)
        lefts = generator.integers(0, part.shape[1] - SIDE + 1, count)
        cut = (part[y : y + SIDE, x : x + SIDE] for y, x in zip(tops, lefts, strict=True))
        found.append([torch.from_numpy(np.array(crop)).permute(2, 0, 1).float() / 255 for crop in cut])
    return found


def _in_turn(crops: list[list[Tensor]]) -> tuple[list[Tensor], list[int]]:
    """Images of all classes in turn, and their classes."""
    images = [image for row in zip(*crops, strict=True) for image in row]
    return images, list(range(len(crops))) * len(crops[0])


def _foreign(
    detector: TemplateMatching, crops: list[list[Tensor]], generator: np.random.Generator
) -> SampleBank:
    """The crops with defects that no training sample has, kinds in turn."""
    images, classes = _in_turn(crops)
    coins = cut_coins()
    made = []
    for number, image in enumerate(images):
        kind = KINDS[number // len(crops) % len(KINDS)]
        made.append(deface(image.permute(1, 2, 0).numpy(), kind, coins, generator))
    defaced = [torch.from_numpy(np.array(pixels)).permute(2, 0, 1).float() for pixels, _ in made]
    bank = make_samples(
        detector, defaced, classes, SyntheticAnomaly(probability=0, p_texture=0), len(defaced), 0
    )
    masks = np.stack([mask for _, mask in made]).astype(np.uint8)
    return SampleBank(bank.features, masks, bank.classes)


def cut_coins() -> list[tuple[np.ndarray, np.ndarray]]:
    """The coins of a photograph of scikit-image (Greek coins from Pompeii, public domain), cut out.

    Returns:
        pairs of grey values in [0, 1] and a mask, (height, width) each.
    """
    from skimage.filters import threshold_otsu

    grey = packaged("coins.png")[:, :, 0] / 255
    smoothed = gaussian_filter(grey, 2)
    regions, count = label(smoothed > threshold_otsu(smoothed))
    found = []
    for number in range(1, count + 1):
        inside = regions == number
        rows, columns = np.nonzero(inside)
        box = np.s_[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        height, width = inside[box].shape
        if min(height, width) >= 25 and max(height, width) <= 80:
            found.append((grey[box], inside[box]))
    return found


def deface(
    image: Pixels, kind: str, coins: list[tuple[np.ndarray, np.ndarray]], generator: np.random.Generator
) -> tuple[Pixels, Mask]:
    """An image with one defect, and where it is: a pasted coin, a scratch of 2 to 4 pixels, or local blur."""
    side = image.shape[0]
    scale = side / 224
    if kind == "coin":
        values, inside = coins[int(generator.integers(len(coins)))]
        factor, angle = scale * generator.uniform(0.5, 1.1), generator.uniform(0, 360)
        values, inside = (
            rotate(zoom(x.astype(float), factor, order=1), angle, order=1) for x in (values, inside)
        )
        weight = np.clip(inside, 0, 1)
        top, left = (int(generator.integers(0, side - size + 1)) for size in weight.shape)
        alpha, pasted = np.zeros((side, side)), np.zeros((side, side))
        box = np.s_[top : top + weight.shape[0], left : left + weight.shape[1]]
        alpha[box], pasted[box] = weight, values
        return (image * (1 - alpha[..., None]) + (alpha * pasted)[..., None]).astype(np.float32), alpha > 0.5
    if kind == "scratch":
        steps = scale * generator.uniform(-35, 35, (4, 2))
        points = generator.uniform(20, side - 20, 2) + np.cumsum(steps, axis=0)
        points = points.clip(5, side - 5)
        canvas = Image.new("L", (4 * side, 4 * side))
        width = int(generator.integers(8, 17))
        ImageDraw.Draw(canvas).line([tuple(4 * point) for point in points], 255, width, "curve")
        alpha = np.asarray(canvas.resize((side, side), Image.Resampling.BOX)) / 255
        shade = generator.choice((-1, 1)) * generator.uniform(0.2, 0.4)
        return np.clip(image + shade * alpha[..., None], 0, 1).astype(np.float32), alpha > 0.5
    centre = generator.uniform(45 * scale, side - 45 * scale, 2)
    radii = scale * generator.uniform(15, 40, 2)
    places = np.mgrid[:side, :side]
    mask = (((places - centre[:, None, None]) / radii[:, None, None]) ** 2).sum(0) < 1
    sigma = generator.uniform(2, 4)
    blurred = gaussian_filter(image, (sigma, sigma, 0))
    return np.where(mask[..., None], blurred, image), mask
