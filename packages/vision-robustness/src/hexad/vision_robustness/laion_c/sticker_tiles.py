"""Stickers: shrunken photographs pasted all over the image."""

import numpy as np

from hexad.vision_robustness.images import Rgb, rgb_array
from hexad.vision_robustness.laion_c.images import ImageLike, like, pixel_unit, scaled_count
from hexad.vision_robustness.laion_c.levels import Seed, generator, level_index
from hexad.vision_robustness.laion_c.tiles import TileBank, need_tiles

COUNTS = (100, 200, 400, 600, 1200)
SIZE = 16


def stickers(image: ImageLike, severity: int, rng: Seed = None, tiles: TileBank | None = None) -> ImageLike:
    """Paste 100 to 1200 tiles of 16 x 16, drawn with replacement from a bank, at random places.

    The top-left corner is uniform over rows 0 to height - 17 and columns 0 to width - 17: the last row and
    column of pixels are never covered, as in the benchmark. Tiles may overlap; later ones lie on top. The
    counts are for 224 x 224; other sizes keep the density.

    Args:
        image: PIL image, or array (height, width[, 3]).
        severity: 1 to 5.
        rng: seed or generator of tiles and places.
        tiles: the bank; needed.

    Raises:
        InputError: bad image or severity, or no bank.
    """
    pixels = rgb_array(image)
    height, width = pixels.shape[:2]
    count = scaled_count(COUNTS[level_index(severity)], height, width)
    bank, size = need_tiles("stickers", tiles), SIZE * pixel_unit(height, width)
    return like(image, paste_tiles(pixels, bank, size, count, generator(rng)))


def paste_tiles(pixels: Rgb, bank: TileBank, size: int, count: int, rng: np.random.Generator) -> Rgb:
    """Paste `count` random tiles of a bank, at `size` pixels, over a copy of the image."""
    tiles = bank.take(rng.integers(0, len(bank), count), size)
    room = (pixels.shape[0] - size, pixels.shape[1] - size)
    out = pixels.copy()
    for tile, (top, left) in zip(tiles, rng.integers(0, room, (count, 2)).tolist(), strict=True):
        out[top : top + size, left : left + size] = tile
    return out
