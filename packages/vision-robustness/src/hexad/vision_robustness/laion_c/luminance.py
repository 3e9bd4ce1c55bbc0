"""Luminance checkerboard: neighbouring blocks are lightened and darkened in turn."""

import numpy as np

from hexad.vision_robustness.images import rgb_array
from hexad.vision_robustness.laion_c.images import ImageLike, like, pixel_unit
from hexad.vision_robustness.laion_c.levels import Seed, generator, level_index

BLOCK = 14
OFFSETS = ((0, 50), (50, 100), (100, 125), (125, 150), (150, 255))
"""Range of the offset in grey levels of 255, one for each level."""


def luminance_checkerboard(image: ImageLike, severity: int, rng: Seed = None) -> ImageLike:
    """Add to each 14 x 14 block one offset U(low, high), positive and negative like a checkerboard.

    Block (i, j) gets `(-1)^(i + j) * U(low, high)` on all channels, clipped to [0, 255] and, as the
    benchmark's conversion to bytes does, rounded down. The published script draws one offset a block for
    every two images; here each image has its own.

    Args:
        image: PIL image, or array (height, width[, 3]).
        severity: 1 to 5.
        rng: seed or generator of the offsets.

    Raises:
        InputError: bad image or severity.
    """
    pixels = rgb_array(image)
    low, high = OFFSETS[level_index(severity)]
    height, width = pixels.shape[:2]
    block = BLOCK * pixel_unit(height, width)
    rows, columns = -(-height // block), -(-width // block)
    offset = generator(rng).uniform(low, high, (rows, columns))
    sign = 1 - 2 * (np.add.outer(np.arange(rows), np.arange(columns)) % 2)
    # floor(pixel + offset) = pixel + floor(offset), in integers and thus the same in every pixel of a block.
    step = np.floor(offset * sign).astype(np.int16)
    step = step.repeat(block, 0).repeat(block, 1)[:height, :width, None]
    return like(image, np.clip(pixels + step, 0, 255).astype(np.uint8))
