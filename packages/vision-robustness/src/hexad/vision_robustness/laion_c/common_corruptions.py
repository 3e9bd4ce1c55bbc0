"""Eight corruptions of ImageNet-C, two of each of its four families: what LAION-C is measured against.

Source: Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations", ICLR 2019, arXiv 1903.12261, with the constants of the authors' code for 224 x 224. Their
packages on PyPI need a display library, ImageMagick or a removed module, so the formulas stand here in numpy.
"""

import functools
import io
from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int
from PIL import Image
from scipy.ndimage import convolve

from hexad.core.validation import check_choice
from hexad.vision_robustness.images import Rgb
from hexad.vision_robustness.laion_c.levels import Seed, generator, level_index

Unit = Float[np.ndarray, "height width 3"]
"""An image in [0, 1]."""


def gaussian_noise(image: Unit, level: int, rng: np.random.Generator) -> Unit:
    """Add N(0, c) to every value."""
    return image + rng.normal(scale=(0.08, 0.12, 0.18, 0.26, 0.38)[level], size=image.shape)


def impulse_noise(image: Unit, level: int, rng: np.random.Generator) -> Unit:
    """Set a share of the values to 0 or 1, half each."""
    share = (0.03, 0.06, 0.09, 0.17, 0.27)[level]
    struck = rng.random(image.shape) < share
    return np.where(struck, rng.random(image.shape) < 0.5, image)


def defocus_blur(image: Unit, level: int, rng: np.random.Generator) -> Unit:
    """Convolve with a slightly smoothed disc of radius 3 to 10."""
    radius, alias = ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))[level]
    reach = 8 if radius <= 8 else radius
    grid = np.arange(-reach, reach + 1)
    disc = (np.add.outer(grid**2, grid**2) <= radius**2).astype(float)
    disc /= disc.sum()
    offsets = np.arange(-1, 2) if radius <= 8 else np.arange(-2, 3)
    smooth = np.exp(-(offsets**2) / (2 * alias**2))
    smooth /= smooth.sum()
    kernel = convolve(disc, np.outer(smooth, smooth), mode="mirror")
    # "mirror" repeats the image without its border pixel, as OpenCV's default does.
    return np.dstack([convolve(image[:, :, channel], kernel, mode="mirror") for channel in range(3)])


def zoom_blur(image: Unit, level: int, rng: np.random.Generator) -> Unit:
    """The mean of the image and its copies zoomed in by 1 to at most 1.3, linearly interpolated."""
    stop, step = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))[level]
    factors = np.arange(1, stop, step)
    total = image.copy()
    for factor in factors:
        # Zooming is separable: rows and columns in turn, ten times as fast as ndimage.zoom.
        low, share = _zoomed_places(image.shape[0], float(factor))
        rows = image[low] * (1 - share[:, None, None]) + image[low + 1] * share[:, None, None]
        low, share = _zoomed_places(image.shape[1], float(factor))
        total += rows[:, low] * (1 - share[:, None]) + rows[:, low + 1] * share[:, None]
    return total / (len(factors) + 1)


def fog(image: Unit, level: int, rng: np.random.Generator) -> Unit:
    """Add a plasma fractal, and darken so that the brightest value stays."""
    amount, decay = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))[level]
    height, width = image.shape[:2]
    side = 1 << (max(height, width) - 1).bit_length()
    brightest = image.max()
    fogged = image + amount * plasma(side, decay, rng)[:height, :width, None]
    return fogged * brightest / (brightest + amount)


def brightness(image: Unit, level: int, rng: np.random.Generator) -> Unit:
    """Raise the value V of HSV by 0.1 to 0.5; hue and saturation stay."""
    value = image.max(axis=2, keepdims=True)
    raised = np.minimum(value + (0.1, 0.2, 0.3, 0.4, 0.5)[level], 1)
    # Black has no saturation and becomes grey.
    return np.where(value > 0, image * raised / np.maximum(value, 1e-12), raised)


def contrast(image: Unit, level: int, rng: np.random.Generator) -> Unit:
    """Draw every channel to its mean."""
    mean = image.mean(axis=(0, 1), keepdims=True)
    return (image - mean) * (0.4, 0.3, 0.2, 0.1, 0.05)[level] + mean


def jpeg_compression(image: Unit, level: int, rng: np.random.Generator) -> Unit:
    """Compress at JPEG quality 25 to 7."""
    buffer = io.BytesIO()
    Image.fromarray(_bytes(image)).save(buffer, "JPEG", quality=(25, 18, 15, 10, 7)[level])
    with Image.open(buffer) as decoded:
        return np.asarray(decoded) / 255


COMMON: dict[str, Callable[[Unit, int, np.random.Generator], Unit]] = {
    "gaussian_noise": gaussian_noise,
    "impulse_noise": impulse_noise,
    "defocus_blur": defocus_blur,
    "zoom_blur": zoom_blur,
    "fog": fog,
    "brightness": brightness,
    "contrast": contrast,
    "jpeg_compression": jpeg_compression,
}


def corrupt_commonly(pixels: Rgb, name: str, severity: int, rng: Seed = None) -> Rgb:
    """Corrupt an image, (height, width, 3) of uint8, by one of `COMMON` at severity 1 to 5.

    Raises:
        InputError: unknown name or bad severity.
    """
    check_choice("corruption", name, COMMON)
    return _bytes(COMMON[name](pixels / 255, level_index(severity), generator(rng)))


def plasma(side: int, decay: float, rng: np.random.Generator) -> Float[np.ndarray, "side side"]:
    """A plasma fractal in [0, 1] on a torus of side 2^k, by the diamond-square algorithm."""
    field = np.zeros((side, side))
    step, wobble = side, 100.0

    def wobbled(sums: np.ndarray) -> np.ndarray:
        return sums / 4 + wobble * rng.uniform(-wobble, wobble, sums.shape)

    while step >= 2:
        half = step // 2
        corners = field[::step, ::step]
        across = corners + np.roll(corners, -1, axis=0)
        field[half::step, half::step] = wobbled(across + np.roll(across, -1, axis=1))
        centres = field[half::step, half::step]
        below, right = centres + np.roll(centres, 1, axis=0), centres + np.roll(centres, 1, axis=1)
        corners = field[::step, ::step]
        field[::step, half::step] = wobbled(below + corners + np.roll(corners, -1, axis=1))
        field[half::step, ::step] = wobbled(right + corners + np.roll(corners, -1, axis=0))
        step, wobble = half, wobble / decay
    field -= field.min()
    return field / field.max()


@functools.lru_cache(maxsize=256)
def _zoomed_places(
    length: int, factor: float
) -> tuple[Int[np.ndarray, " length"], Float[np.ndarray, " length"]]:
    """Where the pixels of a line lie once its centre is zoomed: the pixel before, and the share beyond it."""
    cut = int(np.ceil(length / factor))
    zoomed = round(cut * factor)
    places = np.arange(zoomed) * ((cut - 1) / (zoomed - 1))
    low = np.minimum(places.astype(int), cut - 2)
    trim = (zoomed - length) // 2
    chosen = slice(trim, trim + length)
    return (length - cut) // 2 + low[chosen], (places - low)[chosen]


def _bytes(image: Unit) -> Rgb:
    # Rounded down, as the authors' np.uint8(...) does.
    return (np.clip(image, 0, 1) * 255).astype(np.uint8)
