"""Masks of random shape: Perlin noise, turned and cut at a threshold."""

import math

import numpy as np
from jaxtyping import Bool, Float
from scipy.ndimage import rotate

from hexad.core.validation import check_count

THRESHOLD = 0.3
LARGEST_POWER = 5
"""Scales are 2^0 to 2^5 cells an axis."""


def perlin_noise(
    height: int, width: int, rows: int, columns: int, generator: np.random.Generator
) -> Float[np.ndarray, "height width"]:
    """Perlin's gradient noise with rows x columns cells, scaled by sqrt(2) into about [-1, 1]."""
    for name, value in (("height", height), ("width", width), ("rows", rows), ("columns", columns)):
        check_count(name, value)
    angles = generator.uniform(0, 2 * np.pi, (rows + 1, columns + 1))
    y = (np.arange(height) + 0.5) * rows / height
    x = (np.arange(width) + 0.5) * columns / width
    row, column = y.astype(int), x.astype(int)
    down, right = (y - row)[:, None], (x - column)[None, :]

    def corner(below: int, beside: int) -> Float[np.ndarray, "height width"]:
        angle = angles[np.ix_(row + below, column + beside)]
        return np.sin(angle) * (down - below) + np.cos(angle) * (right - beside)

    def fade(t: np.ndarray) -> np.ndarray:
        return t**3 * (t * (6 * t - 15) + 10)

    upper = corner(0, 0) + fade(right) * (corner(0, 1) - corner(0, 0))
    lower = corner(1, 0) + fade(right) * (corner(1, 1) - corner(1, 0))
    return math.sqrt(2) * (upper + fade(down) * (lower - upper))


def perlin_mask(height: int, width: int, generator: np.random.Generator) -> Bool[np.ndarray, "height width"]:
    """Where turned Perlin noise of a random scale exceeds 0.3; turned by up to 90 degrees either way."""
    rows, columns = 2 ** generator.integers(0, LARGEST_POWER + 1, 2)
    noise = perlin_noise(height, width, int(rows), int(columns), generator)
    turned = rotate(noise, generator.uniform(-90, 90), reshape=False, order=1)
    return turned > THRESHOLD
