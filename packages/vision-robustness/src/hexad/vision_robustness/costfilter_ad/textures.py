"""Foreign textures for synthetic anomalies, from photographs that ship inside scikit-image.

The authors use the Describable Textures Dataset, which no package holds; any folder of it serves as well.
"""

from pathlib import Path

from hexad.core.data import distribution_file, distribution_folder
from hexad.core.errors import MissingExtraError
from hexad.vision_robustness.costfilter_ad.metrics import EXTRA
from hexad.vision_robustness.images import Rgb, read_image

SURFACES = ("brick", "grass", "gravel")
"""Photographs of surfaces, (512, 512), grey; public domain (CC0), see skimage/data/README.txt."""

FOREIGN = (
    "astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "ihc.png", "motorcycle_left.png",
    "retina.jpg", "rocket.jpg",
)  # fmt: skip


def packaged(name: str) -> Rgb:
    """A photograph of scikit-image's `skimage/data`, RGB; a name without a suffix is of a PNG file.

    Raises:
        MissingExtraError: scikit-image is not installed.
    """
    return read_image(_path(name if "." in name else f"{name}.png"))[0]


def packaged_textures() -> list[Path]:
    """Paths of eight photographs of scikit-image (public domain, CC0 or CC BY), to draw textures from.

    Raises:
        MissingExtraError: scikit-image is not installed.
    """
    return [_path(name) for name in FOREIGN]


def _path(name: str) -> Path:
    try:
        distribution_folder("scikit-image")
    except MissingExtraError:
        raise MissingExtraError(
            f'photographs of scikit-image are needed, which is not installed; run: pip install "{EXTRA}"'
        ) from None
    return distribution_file("scikit-image", f"skimage/data/{name}")
