"""Mosaic: the image put together from shrunken photographs of the right mean colour."""

import numpy as np
from PIL import Image

from hexad.core.errors import InputError
from hexad.vision_robustness.images import Rgb, rgb_array
from hexad.vision_robustness.laion_c.images import ImageLike, centre_crop, like, pixel_unit
from hexad.vision_robustness.laion_c.levels import Seed, level_index
from hexad.vision_robustness.laion_c.tiles import TileBank, need_tiles

TILE_SIZES = (4, 6, 8, 16, 28)


def mosaic(
    image: ImageLike,
    severity: int,
    rng: Seed = None,
    tiles: TileBank | None = None,
    *,
    pad: bool = True,
) -> ImageLike:
    """Replace each cell of 4, 6, 8, 16 or 28 pixels by the tile whose mean colour is nearest.

    The image is shrunk (bicubic) to one pixel a cell, and each pixel takes the tile at the least Euclidean
    distance in RGB.

    Args:
        image: PIL image, or array (height, width[, 3]).
        severity: 1 to 5.
        rng: not used; nothing here is random.
        tiles: the bank; needed.
        pad: where the tile size t does not divide a side, repeat the border pixels up to the next multiple,
            and cut the result back, so that the outer tiles are cut, as the benchmark does at level 2 (252
            pixels cut to 224). With False such an image is refused.

    Raises:
        InputError: bad image or severity, no bank, or, with `pad=False`, a side that is no multiple of t.
    """
    pixels = rgb_array(image)
    height, width = pixels.shape[:2]
    size = TILE_SIZES[level_index(severity)] * pixel_unit(height, width)
    bank = need_tiles("mosaic", tiles)
    if not pad:
        return like(image, lay_mosaic(pixels, size, bank))
    more = (-height % size, -width % size)
    if any(more):
        # The same rounding as the centre crop that undoes it.
        before = [round(extra / 2) for extra in more]
        margins = [(first, extra - first) for first, extra in zip(before, more, strict=True)]
        pixels = np.pad(pixels, [*margins, (0, 0)], mode="edge")
    return like(image, centre_crop(lay_mosaic(pixels, size, bank), height, width))


def lay_mosaic(pixels: Rgb, size: int, bank: TileBank) -> Rgb:
    """Lay tiles of `size` pixels over an image whose sides are multiples of `size`."""
    height, width = pixels.shape[:2]
    if height % size or width % size:
        raise InputError(
            f"tiles of {size} pixels do not divide an image of {width} x {height}; crop it to "
            f"{width - width % size} x {height - height % size}, or pass pad=True"
        )
    rows, columns = height // size, width // size
    wanted = np.asarray(Image.fromarray(pixels).resize((columns, rows), Image.Resampling.BICUBIC))
    _, nearest = bank.tree(size).query(wanted.reshape(-1, 3))
    cells = bank.take(nearest, size).reshape(rows, columns, size, size, 3)
    return cells.transpose(0, 2, 1, 3, 4).reshape(height, width, 3)
