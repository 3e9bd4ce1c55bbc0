"""Vertical lines: the image redrawn as thin lines that bend to the left where it is dark.

Pillow would draw the lines one by one in 0.4 s; here every pixel of every line is computed at once by the
closed form of Bresenham's line, and where lines cross the one drawn last wins. The result is the same.
"""

import numpy as np
from jaxtyping import Float, Int, UInt8
from PIL import Image

from hexad.vision_robustness.images import Rgb, rgb_array
from hexad.vision_robustness.laion_c.images import ImageLike, like, pixel_unit
from hexad.vision_robustness.laion_c.levels import Seed, level_index

LINES = ((224, 1), (178, 2), (112, 4), (84, 6), (60, 8))
"""Number of lines over a width of 224, and the step down a line in pixels, for each level."""
BEND = 40.0
"""How far to the left a black pixel moves its line, in pixels."""


def vertical_lines(image: ImageLike, severity: int, rng: Seed = None) -> ImageLike:
    """Redraw the image on black as 224 to 60 lines of one pixel's width, in steps of 1 to 8 pixels.

    Line i starts at x = (i / lines) * width. Each step takes the mean colour and the mean luma of its block
    (all rounded down) and goes on to x - 40 * (1 - luma / 255). The arithmetic is the published script's,
    in its order, rounding included: at level 1 three columns of 224 start at one pixel less than they
    should, and on a white image stay black.

    Args:
        image: PIL image, or array (height, width[, 3]).
        severity: 1 to 5.
        rng: not used; nothing here is random.

    Raises:
        InputError: bad image or severity.
    """
    pixels = rgb_array(image)
    lines, step = LINES[level_index(severity)]
    unit = pixel_unit(*pixels.shape[:2])
    # A line of one benchmark pixel in a larger image is drawn in the image's small copy, then magnified.
    small = np.asarray(Image.fromarray(pixels).reduce(unit)) if unit > 1 else pixels
    drawn = draw_lines(small, max(1, round(lines * small.shape[1] / 224)), step)
    if unit > 1:
        drawn = drawn.repeat(unit, 0).repeat(unit, 1)[: pixels.shape[0], : pixels.shape[1]]
    return like(image, drawn)


def draw_lines(pixels: Rgb, lines: int, step: int) -> Rgb:
    """Draw `lines` bent lines in steps of `step` rows; see `vertical_lines`."""
    height, width = pixels.shape[:2]
    # (i / lines) * width, in this order: the rounding of i / lines is part of the benchmark.
    x = (np.arange(lines) / lines) * width
    left = x.astype(np.int64)
    right = np.minimum((x + width / lines).astype(np.int64), width)
    top = np.arange(0, height, step)
    bottom = np.minimum(top + step, height)
    colour, luma = _block_means(pixels, left, right, top, bottom)
    tip = x[:, None] + (1 - luma / 255) * -BEND
    # Coordinates reach the pixels as C casts them, towards zero.
    end = tip.astype(np.int64)
    start = np.concatenate([left[:, None], end[:, :-1]], axis=1)
    start_row = np.concatenate([top[:1], top[:-1]])
    rank, place = _bresenham(start, start_row, end, top, height, width)
    last = np.full(height * width, -1, np.int32)
    np.maximum.at(last, place, rank)
    palette = np.concatenate([colour.reshape(-1, 3), np.zeros((1, 3), np.uint8)])
    return palette[last].reshape(height, width, 3)


def _block_means(
    pixels: Rgb,
    left: Int[np.ndarray, " lines"],
    right: Int[np.ndarray, " lines"],
    top: Int[np.ndarray, " steps"],
    bottom: Int[np.ndarray, " steps"],
) -> tuple[UInt8[np.ndarray, "lines steps 3"], Float[np.ndarray, "lines steps"]]:
    """Mean colour and luma, rounded down, of the blocks [left, right) x [top, bottom); 0 where empty."""
    luma = np.asarray(Image.fromarray(pixels).convert("L"))
    rows = np.add.reduceat(np.dstack([pixels, luma]), top, axis=0, dtype=np.int32)
    total = np.zeros((len(top), pixels.shape[1] + 1, 4), np.int32)
    np.cumsum(rows, axis=1, out=total[:, 1:])
    # Neighbouring blocks may overlap or leave a gap, so their sums are differences of running sums.
    sums = (total[:, right] - total[:, left]).transpose(1, 0, 2)
    count = np.multiply.outer(right - left, bottom - top)[:, :, None]
    means = sums // np.maximum(count, 1).astype(np.int32)
    return means[:, :, :3].astype(np.uint8), means[:, :, 3].astype(np.float64)


def _bresenham(
    x0: Int[np.ndarray, "lines steps"],
    y0: Int[np.ndarray, " steps"],
    x1: Int[np.ndarray, "lines steps"],
    y1: Int[np.ndarray, " steps"],
    height: int,
    width: int,
) -> tuple[Int[np.ndarray, " points"], Int[np.ndarray, " points"]]:
    """Every pixel inside the image of the segments (x0, y0) - (x1, y1), where y1 >= y0.

    Pillow's line adds `minor` to an error term at each step along the longer axis and moves along the shorter
    one when the term reaches the longer; after i steps that is floor((2 i minor + major) / (2 major)) moves.

    Returns:
        the number of the segment in drawing order, and the pixel's index in the flattened image.
    """
    # 32 bits halve the memory that the millions of points of a large image pass through.
    across = (x1 - x0).astype(np.int32)
    down = np.broadcast_to((y1 - y0).astype(np.int32), across.shape).ravel()
    right = np.sign(across).ravel()
    across = np.abs(across).ravel()
    major = np.maximum(across, down)
    length = major + 1
    segment = np.repeat(np.arange(length.size, dtype=np.int32), length)
    first = np.repeat((length.cumsum() - length).astype(np.int32), length)
    along = np.arange(segment.size, dtype=np.int32) - first
    flat = across > down
    minor = np.where(flat, down, across)
    major = np.maximum(major, 1)[segment]
    aside = (2 * minor[segment] * along + major) // (2 * major)
    flat = flat[segment]
    x = x0.astype(np.int32).ravel()[segment] + right[segment] * np.where(flat, along, aside)
    y = np.broadcast_to(y0.astype(np.int32), x0.shape).ravel()[segment] + np.where(flat, aside, along)
    inside = (x >= 0) & (x < width) & (y < height)
    return segment[inside], y[inside] * width + x[inside]
