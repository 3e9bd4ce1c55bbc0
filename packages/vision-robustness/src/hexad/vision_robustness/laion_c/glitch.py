"""Glitched: bands shifted sideways, one colour channel displaced, every other row black.

The distortion is that of the package glitch-this, called with the benchmark's arguments.
"""

import random
import threading

import numpy as np
from PIL import Image

from hexad.core.errors import InputError
from hexad.vision_robustness.images import rgb_array
from hexad.vision_robustness.laion_c.images import ImageLike, like
from hexad.vision_robustness.laion_c.levels import Seed, generator, level_index

AMOUNTS = (2, 4, 5, 8, 10)

# glitch-this seeds and reads Python's global generator.
_global_random = threading.Lock()


def glitched(image: ImageLike, severity: int, rng: Seed = None, *, glitch_seed: int | None = 1) -> ImageLike:
    """Glitch the image exactly as `glitch_this.ImageGlitcher` does at amount 2, 4, 5, 8 or 10.

    The benchmark passes seed 1 for every image, so that all images are shifted alike. That is the default;
    `glitch_seed=None` draws a seed for each image from `rng` instead.

    Args:
        image: PIL image, or array (height, width[, 3]).
        severity: 1 to 5.
        rng: seed or generator; read only where `glitch_seed` is None.
        glitch_seed: the seed given to glitch-this, at least 1 (it takes 0 for no seed at all).

    Raises:
        InputError: bad image, severity or seed.
    """
    from glitch_this import ImageGlitcher

    pixels = rgb_array(image)
    amount = AMOUNTS[level_index(severity)]
    if glitch_seed is None:
        glitch_seed = int(generator(rng).integers(1, 2**31))
    elif isinstance(glitch_seed, bool) or not isinstance(glitch_seed, int) or glitch_seed < 1:
        raise InputError(f"glitch_seed is {glitch_seed!r}; it must be an integer of at least 1, or None")
    with _global_random:
        state = random.getstate()
        try:
            # An image made from an array has no file format; from a PNG the library would make RGBA.
            result = ImageGlitcher().glitch_image(
                Image.fromarray(pixels),
                amount,
                seed=glitch_seed,
                glitch_change=0.0,
                cycle=False,
                color_offset=True,
                scan_lines=True,
            )
        finally:
            random.setstate(state)
    return like(image, np.asarray(result))
