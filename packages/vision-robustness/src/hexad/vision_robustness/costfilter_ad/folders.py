"""Folders in the layout of MVTec AD: train/good, test/<kind>, ground_truth/<kind>/<name>_mask.png.

A folder of such folders is a data set of several product classes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float
from PIL import Image
from scipy.ndimage import label, maximum, maximum_position
from torch import Tensor

from hexad.core.errors import InputError
from hexad.core.validation import check_folder
from hexad.vision_robustness.images import Rgb, find_images, read_image

GOOD = "good"


@dataclass(frozen=True)
class Product:
    """One product class: its name and where it lies."""

    name: str
    folder: Path

    def training(self) -> list[Path]:
        """Paths of its normal images.

        Raises:
            InputError: there are none.
        """
        return find_images(self.folder / "train" / GOOD)


@dataclass(frozen=True)
class TestImage:
    """An image to judge.

    Attributes:
        path: of the file.
        name: its path below the folder that was given, such as "crack/001"; without its suffix, but where
            another image would have the same name.
        product: number of its product class.
        kind: "good" or the kind of defect; None where the folder does not say.
        mask: file of its true mask; None for good images and where there is none.
    """

    __test__ = False

    path: Path
    name: str
    product: int = 0
    kind: str | None = None
    mask: Path | None = None


def find_products(folder: str | Path) -> list[Product]:
    """The product classes of a folder: itself, or those below it that hold train/good.

    Raises:
        InputError: there is none.
    """
    root = check_folder(folder, "data folder")
    if (root / "train" / GOOD).is_dir():
        return [Product(root.resolve().name, root)]
    below = sorted(path for path in root.iterdir() if (path / "train" / GOOD).is_dir())
    if not below:
        raise InputError(f"no normal images; put some in {root}/train/good (or <product>/train/good)")
    return [Product(path.name, path) for path in below]


def find_test_images(folder: str | Path, classes: Sequence[str]) -> list[TestImage]:
    """Images to judge: the test folders of the layout, or all images of any other folder, or one image.

    Args:
        folder: in the layout, or not.
        classes: names of the product classes that the model knows.

    Raises:
        InputError: no images, or a product that the model does not know.
    """
    root = Path(folder)
    if root.is_file():
        _single(classes, root)
        return [TestImage(root, root.stem)]
    check_folder(root, "folder")
    if (root / "test").is_dir():
        number = 0 if len(classes) == 1 else _number(root.resolve().name, classes, root)
        return _distinct(_tested(root, "", number))
    below = sorted(path for path in root.iterdir() if (path / "test").is_dir())
    if below:
        return _distinct(
            [
                image
                for path in below
                for image in _tested(path, f"{path.name}/", _number(path.name, classes, path))
            ]
        )
    _single(classes, root)
    return _distinct(
        [TestImage(path, path.relative_to(root).with_suffix("").as_posix()) for path in find_images(root)]
    )


def _distinct(images: list[TestImage]) -> list[TestImage]:
    """The images, with their suffix in the name where several would be called alike."""
    count = Counter(image.name for image in images)
    return [
        replace(image, name=image.name + image.path.suffix) if count[image.name] > 1 else image
        for image in images
    ]


def _tested(root: Path, prefix: str, product: int) -> list[TestImage]:
    found = []
    for path in find_images(root / "test"):
        inside = path.relative_to(root / "test")
        kind = inside.parts[0] if len(inside.parts) > 1 else None
        if kind is not None and kind.lower() == GOOD:
            kind = GOOD
        mask = None
        if kind not in (None, GOOD):
            wanted = root / "ground_truth" / inside.parent / f"{path.stem}_mask.png"
            same = wanted.with_name(f"{path.stem}.png")
            mask = next((file for file in (wanted, same) if file.is_file()), None)
        found.append(TestImage(path, prefix + inside.with_suffix("").as_posix(), product, kind, mask))
    return found


def _number(name: str, classes: Sequence[str], where: Path) -> int:
    if name not in classes:
        raise InputError(f"{where} is of product {name!r}; the model knows {', '.join(classes)}")
    return list(classes).index(name)


def _single(classes: Sequence[str], where: Path) -> None:
    if len(classes) > 1:
        raise InputError(
            f"{where} does not say of which product its images are; the model knows {', '.join(classes)}, so "
            "use the layout <product>/test/<kind>"
        )


def read_mask(
    path: Path, shape: tuple[int, int], threshold: int | None = None
) -> Bool[np.ndarray, "height width"]:
    """A true mask, as booleans.

    Args:
        path: of the file.
        shape: height and width of its image.
        threshold: of 0 to 255; values above it are anomalous. Without it a mask must have two values.

    Raises:
        InputError: it is of another size than the image, or has more than two values.
    """
    try:
        with Image.open(path) as file:
            values = np.asarray(file.convert("L"))
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"mask {path} cannot be read ({error})") from None
    if values.shape != shape:
        raise InputError(
            f"mask {path} is {values.shape[1]} x {values.shape[0]} pixels, its image {shape[1]} x {shape[0]}"
        )
    if threshold is not None:
        return values > threshold
    found = np.unique(values)
    if len(found) > 2 or (found[0] != 0 and len(found) > 1) or not set(found.tolist()) <= {0, 1, 255}:
        shown = f"values {', '.join(map(str, found[:3]))}" + (" ..." if len(found) > 3 else "")
        raise InputError(
            f"mask {path} is not binary ({shown}, as grey); use 0 and 255, or cut it by --mask-threshold"
        )
    return values > 0


def shrink_mask(mask: Bool[np.ndarray, "height width"], side: int) -> Bool[np.ndarray, "side side"]:
    """A mask on side x side cells: those half covered, and of a region that half covers none its fullest."""
    if not mask.any():
        return np.zeros((side, side), bool)
    share = np.asarray(Image.fromarray(mask.astype(np.float32)).resize((side, side), Image.Resampling.BOX))
    kept = share >= 0.5
    rows, columns = (np.arange(length) * side // length for length in mask.shape)
    regions, count = label(mask, np.ones((3, 3), int))
    numbers = np.arange(1, count + 1)
    lost = numbers[maximum(kept[np.ix_(rows, columns)], regions, numbers) == 0]
    for row, column in maximum_position(share[np.ix_(rows, columns)], regions, lost):
        kept[rows[row], columns[column]] = True
    return kept


def square(pixels: Rgb, side: int) -> Float[Tensor, "3 side side"]:
    """The pixels scaled to side x side (bilinear, antialiased), in [0, 1]; the ratio of sides is not kept."""
    if pixels.shape[:2] != (side, side):
        pixels = np.asarray(Image.fromarray(pixels).resize((side, side), Image.Resampling.BILINEAR))
    return torch.from_numpy(np.array(pixels)).permute(2, 0, 1).float() / 255


class ImageFiles:
    """Files as square images, read when asked for; sides below `smallest` pixels are refused."""

    def __init__(self, paths: Sequence[Path], side: int, smallest: int) -> None:
        self.paths, self.side, self.smallest = list(paths), side, smallest

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Float[Tensor, "3 side side"]:
        return square(self.pixels(index), self.side)

    def pixels(self, index: int) -> Rgb:
        """The image at its own size."""
        return self.read(index)[0]

    def read(self, index: int) -> tuple[Rgb, bool]:
        """The image at its own size, and whether alpha was composited on white."""
        path = self.paths[index]
        pixels, had_alpha = read_image(path)
        if min(pixels.shape[:2]) < self.smallest:
            raise InputError(
                f"{path} is {pixels.shape[1]} x {pixels.shape[0]} pixels; each side must have at least "
                f"{self.smallest}, four strides of the backbone"
            )
        return pixels, had_alpha
