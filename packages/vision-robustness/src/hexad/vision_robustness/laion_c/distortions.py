"""The six distortions by name, and the frame in which the benchmark applies each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from hexad.core.validation import check_choice
from hexad.vision_robustness.images import Rgb
from hexad.vision_robustness.laion_c.glitch import glitched
from hexad.vision_robustness.laion_c.images import ImageLike, benchmark_frame, centre_crop
from hexad.vision_robustness.laion_c.levels import Seed, level_index
from hexad.vision_robustness.laion_c.lines import vertical_lines
from hexad.vision_robustness.laion_c.luminance import luminance_checkerboard
from hexad.vision_robustness.laion_c.mosaic_tiles import TILE_SIZES, mosaic
from hexad.vision_robustness.laion_c.shapes import geometric_shapes
from hexad.vision_robustness.laion_c.sticker_tiles import stickers
from hexad.vision_robustness.laion_c.tiles import TileBank


@dataclass(frozen=True)
class Distortion:
    """A distortion: its function, and whether it needs a bank of tiles."""

    function: Callable[..., Any]
    needs_tiles: bool = False


DISTORTIONS: Mapping[str, Distortion] = MappingProxyType(
    {
        "glitched": Distortion(glitched),
        "mosaic": Distortion(mosaic, needs_tiles=True),
        "stickers": Distortion(stickers, needs_tiles=True),
        "vertical_lines": Distortion(vertical_lines),
        "geometric_shapes": Distortion(geometric_shapes),
        "luminance_checkerboard": Distortion(luminance_checkerboard),
    }
)
"""The six, by the names of their folders in the benchmark's data."""


def corrupt(
    image: ImageLike,
    name: str,
    severity: int,
    rng: Seed = None,
    tiles: TileBank | None = None,
    *,
    glitch_seed: int | None = 1,
) -> ImageLike:
    """Distort an image of any size from 32 x 32 up; the size is kept.

    Args:
        image: PIL image, or array (height, width[, 3]), uint8 or float in [0, 1]; the result is of its kind.
        name: one of `DISTORTIONS`.
        severity: 1 to 5.
        rng: seed or generator; the same seed gives the same bytes.
        tiles: a bank, for `mosaic` and `stickers`.
        glitch_seed: for `glitched`: the benchmark's constant 1, another, or None to draw it from `rng`.

    Raises:
        InputError: unknown name, bad image or severity, or no bank where one is needed.
    """
    check_choice("distortion", name, DISTORTIONS)
    distortion = DISTORTIONS[name]
    if distortion.needs_tiles:
        return distortion.function(image, severity, rng, tiles)
    if name == "glitched":
        return glitched(image, severity, rng, glitch_seed=glitch_seed)
    return distortion.function(image, severity, rng)


def frame_for(name: str, severity: int) -> tuple[int, int]:
    """The sizes (resize, crop) of the benchmark's frame before a distortion.

    256 and 224, but for a mosaic of tile t 256 - 256 % t, and, where t does not divide 224 (t = 6), a crop of
    that whole square, which is cut to 224 afterwards.
    """
    check_choice("distortion", name, DISTORTIONS)
    index = level_index(severity)
    if name != "mosaic":
        return 256, 224
    tile = TILE_SIZES[index]
    resize = 256 - 256 % tile
    return resize, 224 if 224 % tile == 0 else resize


def corrupt_in_frame(
    pixels: Rgb,
    name: str,
    severity: int,
    rng: Seed = None,
    tiles: TileBank | None = None,
    *,
    glitch_seed: int | None = 1,
) -> Rgb:
    """Cut the image to 224 x 224 as the benchmark does, and distort it; see `frame_for` and `corrupt`."""
    framed = benchmark_frame(pixels, *frame_for(name, severity))
    return centre_crop(corrupt(framed, name, severity, rng, tiles, glitch_seed=glitch_seed), 224, 224)
