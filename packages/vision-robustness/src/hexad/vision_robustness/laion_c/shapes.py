"""Geometric shapes: many small triangles, squares, stars and discs of random colours."""

import math

import numpy as np
from PIL import Image, ImageDraw

from hexad.vision_robustness.images import Rgb, rgb_array
from hexad.vision_robustness.laion_c.images import ImageLike, like, pixel_unit, scaled_count
from hexad.vision_robustness.laion_c.levels import Seed, generator, level_index

COUNTS = (150, 300, 600, 800, 1000)
SMALLEST_SIZE, LARGEST_SIZE = 6, 15


def geometric_shapes(image: ImageLike, severity: int, rng: Seed = None) -> ImageLike:
    """Draw 150 to 1000 opaque shapes over the image, one after the other.

    Each is a triangle, square, star or disc with equal chance; its place is uniform over the image, its size
    uniform in 6 to 15 pixels, its colour uniform, and a star is turned by 0 to 359 degrees. The counts are
    for 224 x 224; other sizes keep the density.

    Args:
        image: PIL image, or array (height, width[, 3]).
        severity: 1 to 5.
        rng: seed or generator of the shapes.

    Raises:
        InputError: bad image or severity.
    """
    pixels = rgb_array(image)
    height, width = pixels.shape[:2]
    count = scaled_count(COUNTS[level_index(severity)], height, width)
    return like(image, draw_shapes(pixels, count, generator(rng), pixel_unit(height, width)))


def draw_shapes(pixels: Rgb, count: int, rng: np.random.Generator, unit: int = 1) -> Rgb:
    """Draw `count` random shapes, `unit` times as large as the benchmark's, over the pixels."""
    height, width = pixels.shape[:2]
    kinds = rng.integers(0, 4, count).tolist()
    places = rng.integers(0, (width, height), (count, 2)).tolist()
    sizes = (unit * rng.integers(SMALLEST_SIZE, LARGEST_SIZE + 1, count)).tolist()
    colours = rng.integers(0, 256, (count, 3)).tolist()
    turns = rng.integers(0, 360, count).tolist()
    canvas = Image.fromarray(pixels)
    draw = ImageDraw.Draw(canvas)
    for kind, (x, y), size, colour, turn in zip(kinds, places, sizes, colours, turns, strict=True):
        fill = tuple(colour)
        if kind == 0:
            draw.polygon([(x, y), (x + size, y), (x + size / 2, y + size)], fill=fill)
        elif kind == 1:
            draw.rectangle((x, y, x + size, y + size), fill=fill)
        elif kind == 2:
            draw.polygon(star(x, y, size, turn), fill=fill)
        else:
            draw.ellipse((x, y, x + size, y + size), fill=fill)
    return np.asarray(canvas)


def star(x: float, y: float, size: float, degrees: float) -> list[tuple[float, float]]:
    """The ten corners of a star around (x, y): radius size / 1.2 outside and half of that inside."""
    points = []
    for corner in range(10):
        angle = math.radians(corner * 36 + degrees)
        radius = size / 1.2 if corner % 2 == 0 else size / 2.4
        points.append((x + radius * math.sin(angle), y + radius * math.cos(angle)))
    return points
