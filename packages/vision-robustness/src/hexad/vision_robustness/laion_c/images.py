"""Images out, the benchmark's frame, and the unit of length.

The benchmark's frame is torchvision's Resize(256) and CenterCrop(224) on a PIL image, which every distortion
of LAION-C but the mosaic starts from.
"""

from typing import TypeVar, cast

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from hexad.vision_robustness.images import Rgb

ImageLike = TypeVar("ImageLike", Image.Image, np.ndarray)


def like(image: ImageLike, pixels: Rgb) -> ImageLike:
    """Return `pixels` as the kind of thing that `image` is: PIL, uint8 array, or float array in [0, 1]."""
    result: Image.Image | np.ndarray = pixels
    if isinstance(image, Image.Image):
        result = Image.fromarray(pixels)
    elif np.issubdtype(image.dtype, np.floating):
        result = (pixels / 255).astype(image.dtype)
    elif not pixels.flags.writeable:
        # What comes out of Pillow is read-only, which a caller (or torch) would stumble over.
        result = pixels.copy()
    return cast(ImageLike, result)


def benchmark_frame(pixels: Rgb, resize: int = 256, crop: int = 224) -> UInt8[np.ndarray, "crop crop 3"]:
    """Scale the short side to `resize` and cut `crop` x `crop` from the centre, as torchvision does on PIL.

    Equals `Compose([Resize(resize), CenterCrop(crop)])` of torchvision bit for bit (bilinear, antialiased).
    """
    height, width = pixels.shape[:2]
    short, long = min(height, width), max(height, width)
    if short != resize:
        other = int(resize * long / short)
        size = (resize, other) if width <= height else (other, resize)
        pixels = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR))
    return centre_crop(pixels, crop, crop)


def centre_crop(pixels: Rgb, height: int, width: int) -> UInt8[np.ndarray, "height width 3"]:
    """Cut (height, width) from the centre; a half pixel is rounded to the even one, as torchvision does."""
    top = round((pixels.shape[0] - height) / 2)
    left = round((pixels.shape[1] - width) / 2)
    return pixels[top : top + height, left : left + width]


def pixel_unit(height: int, width: int) -> int:
    """How many pixels make one pixel of the benchmark's 224: `round(min(height, width) / 224)`, at least 1.

    Lengths in the distortions are multiplied by it, so that a photograph of 12 megapixels looks like its
    small copy; at 224 x 224, and up to 335, it is 1.
    """
    return max(1, round(min(height, width) / 224))


def scaled_count(count: int, height: int, width: int) -> int:
    """How many shapes or stickers keep the density that `count` of them have at 224 x 224."""
    unit = pixel_unit(height, width)
    return max(1, round(count * height * width / (224 * unit) ** 2))
