"""Synthetic anomalies to train on: patches of another texture, blended in where Perlin noise is high.

Half of the images stay clean. Elsewhere, with mask m and beta ~ U(0, 0.8), the image becomes
image (1 - m) + (1 - beta) source m + beta image m; the source is a foreign texture or the image itself,
changed by three of ten operations and shuffled on an 8 x 8 grid.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torchvision.transforms.v2 import functional

from hexad.core.errors import InputError, MissingExtraError
from hexad.core.validation import check_choice, check_range
from hexad.vision_robustness.costfilter_ad.perlin import perlin_mask
from hexad.vision_robustness.images import Rgb, find_images, read_image

Foreground = Literal["all", "dark", "bright"]
FOREGROUNDS: tuple[Foreground, ...] = ("all", "dark", "bright")
GRID = 8
BLEND = 0.8
OPERATIONS = 3

Bytes = UInt8[Tensor, "3 height width"]
Operation = Callable[[Bytes, np.random.Generator], Bytes]

_OPERATIONS: tuple[Operation, ...] = (
    lambda x, g: functional.adjust_gamma(x, float(g.uniform(0.5, 2.0))),
    lambda x, g: functional.adjust_brightness(x, float(g.uniform(0.7, 1.3))),
    lambda x, g: functional.adjust_sharpness(x, float(g.uniform(1.0, 4.0))),
    lambda x, g: functional.adjust_saturation(
        functional.adjust_hue(x, float(g.uniform(-0.2, 0.2))), float(g.uniform(0.5, 1.5))
    ),
    lambda x, g: functional.solarize(x, float(g.integers(32, 129))),
    lambda x, g: functional.posterize(x, int(g.integers(2, 6))),
    lambda x, g: functional.invert(x),
    lambda x, g: functional.autocontrast(x),
    lambda x, g: functional.equalize(x),
    lambda x, g: functional.rotate(x, float(g.uniform(-45, 45))),
)


def load_folder(folder: str | Path) -> list[Path]:
    """Paths of the images of a folder, to be used as textures.

    Raises:
        InputError: there is none.
    """
    return find_images(folder)


@dataclass(frozen=True)
class SyntheticAnomaly:
    """Turns normal images into anomalous ones, or leaves them.

    Args:
        textures: foreign textures, as arrays (height, width, 3) or paths that are read when drawn.
        probability: of an anomaly; otherwise the image is returned as it is.
        p_texture: of a foreign texture; otherwise the image itself is the source.
        foreground: where anomalies may lie: "all", or the pixels that Otsu's threshold calls "dark" or
            "bright", for products on a plain ground.
    """

    textures: Sequence[Rgb | Path] = ()
    probability: float = 0.5
    p_texture: float = 0.5
    foreground: Foreground = "all"

    def __post_init__(self) -> None:
        check_range("probability", self.probability, 0, 1)
        check_range("p_texture", self.p_texture, 0, 1)
        check_choice("foreground", self.foreground, FOREGROUNDS)
        for texture in self.textures:
            array = isinstance(texture, np.ndarray) and texture.dtype == np.uint8
            if not (array and texture.ndim == 3 and texture.shape[2] == 3) and not isinstance(texture, Path):
                shown = getattr(texture, "shape", repr(texture))
                raise InputError(
                    f"a texture is {shown}; give arrays (height, width, 3) of bytes, or pathlib.Paths"
                )
        if self.p_texture > 0 and not len(self.textures):
            raise InputError(
                "there are no textures; give some, or set p_texture to 0 to use the images alone"
            )

    def __call__(
        self, image: Float[Tensor, "3 height width"], generator: np.random.Generator
    ) -> tuple[Float[Tensor, "3 height width"], Float[Tensor, "height width"]]:
        """An image in [0, 1] and its mask; a clean image is the given one, bit for bit."""
        height, width = image.shape[1:]
        if generator.random() >= self.probability:
            return image, torch.zeros(height, width)
        mask = torch.from_numpy(perlin_mask(height, width, generator)) & self._allowed(image)
        source = self._source(image, generator)
        beta = BLEND * generator.random()
        blended = (1 - beta) * source + beta * image
        return torch.where(mask, blended, image), mask.float()

    def _allowed(self, image: Tensor) -> Tensor:
        if self.foreground == "all":
            return torch.ones(image.shape[1:], dtype=torch.bool)
        try:
            from skimage.filters import threshold_otsu
        except ImportError:
            raise MissingExtraError(
                "scikit-image finds the foreground, which is not installed; run: "
                'pip install "hexad-vision-robustness[costfilter-ad]"'
            ) from None
        grey = functional.rgb_to_grayscale(image)[0]
        if float(grey.min()) == float(grey.max()):
            return torch.ones_like(grey, dtype=torch.bool)
        bright = grey > float(threshold_otsu(grey.numpy()))
        return bright if self.foreground == "bright" else ~bright

    def _source(self, image: Tensor, generator: np.random.Generator) -> Tensor:
        height, width = image.shape[1:]
        if generator.random() < self.p_texture:
            texture = self.textures[int(generator.integers(len(self.textures)))]
            pixels = read_image(texture)[0] if isinstance(texture, Path) else texture
            source = functional.resize(torch.from_numpy(np.array(pixels)).permute(2, 0, 1), [height, width])
        else:
            source = (image * 255).round().to(torch.uint8)
        for index in generator.choice(len(_OPERATIONS), OPERATIONS, replace=False):
            source = _OPERATIONS[index](source, generator)
        return shuffle_grid(source.float() / 255, generator)


def shuffle_grid(
    image: Float[Tensor, "3 height width"], generator: np.random.Generator
) -> Float[Tensor, "3 height width"]:
    """The cells of an 8 x 8 grid in random order; what is left of a side that 8 does not divide stays."""
    height, width = (side // GRID for side in image.shape[1:])
    body = image[:, : GRID * height, : GRID * width]
    cells = body.unflatten(1, (GRID, height)).unflatten(3, (GRID, width)).permute(1, 3, 0, 2, 4).flatten(0, 1)
    cells = cells[torch.from_numpy(generator.permutation(GRID * GRID))]
    shuffled = image.clone()
    back = cells.unflatten(0, (GRID, GRID)).permute(2, 0, 3, 1, 4)
    shuffled[:, : GRID * height, : GRID * width] = back.flatten(1, 2).flatten(2, 3)
    return shuffled
