"""Labelled pictures in folders: a tree with train/ and val/, or one tree of which a share is held out."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.data import create_dataset
from timm.data.dataset import ImageDataset
from timm.data.readers.img_extensions import get_img_extensions

from hexad.core.errors import InputError
from hexad.core.validation import check_folder, check_path, check_range

VALIDATION = ("val", "valid", "validation", "test")


@dataclass(frozen=True)
class Pictures:
    """A labelled set for training and one for validation.

    Attributes:
        train: timm's data set; set its `transform`.
        val: the same for validation.
        classes: names, in the order of the labels.
        digest: of file names and sizes, by which a resumed run knows its data.
    """

    train: ImageDataset
    val: ImageDataset
    classes: tuple[str, ...]
    digest: str


def read_pictures(
    root: str | Path,
    held_out: float = 0.2,
    progress: Callable[[float, str], None] | None = None,
) -> Pictures:
    """Find labelled pictures: DATA/train/<class>/* and DATA/val/<class>/*, or DATA/<class>/*.

    Args:
        root: the tree.
        held_out: share of each class that is kept for validation where there is no val/, drawn by a fixed
            seed, at least one picture of a class.
        progress: called as `progress(fraction, "12 of 80")`.

    Raises:
        InputError: no such folder, no pictures, fewer than two classes, a class in val/ that train/ lacks, or
            a file that is no picture.
    """
    folder = check_folder(root, "data folder")
    check_range("held_out", held_out, 0, 1, low_open=True, high_open=True)
    if (folder / "train").is_dir():
        val = next((folder / name for name in VALIDATION if (folder / name).is_dir()), None)
        if val is None:
            raise InputError(f"{folder} has train/ but none of {'/, '.join(VALIDATION)}/; add one")
        train_set = _labelled(folder / "train")
        names = train_set.reader.class_to_idx
        strange = {child.name for child in val.iterdir() if child.is_dir()} - set(names)
        if strange:
            raise InputError(f"{val} has the class {min(strange)!r}, which {folder / 'train'} lacks")
        val_set = _labelled(val, names)
    else:
        train_set, val_set = _labelled(folder), _labelled(folder)
        chosen = _held_out([label for _, label in train_set.reader.samples], held_out)
        samples = train_set.reader.samples
        train_set.reader.samples = [sample for sample, held in zip(samples, chosen, strict=True) if not held]
        val_set.reader.samples = [sample for sample, held in zip(samples, chosen, strict=True) if held]
    names = train_set.reader.class_to_idx
    if len(names) < 2:
        raise InputError(f"{folder} has one class, {next(iter(names))!r}; a classifier needs at least two")
    paths = [Path(path) for path, _ in (*train_set.reader.samples, *val_set.reader.samples)]
    digest = hashlib.sha256()
    for number, path in enumerate(paths):
        check_picture(path)
        digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\n".encode())
        if progress is not None:
            progress((number + 1) / len(paths), f"{number + 1} of {len(paths)} pictures looked at")
    return Pictures(train_set, val_set, tuple(sorted(names, key=names.get)), digest.hexdigest()[:16])


def check_picture(path: Path, *, whole: bool = False) -> None:
    """Refuse a file that is no picture of 8 bits a channel.

    Its pixels are decoded where `whole`: of a file that is cut off the header alone is good.
    """
    if fault := _fault(path, whole=whole):
        raise InputError(f"{path} cannot be read as a picture ({fault}); mend or remove it")


def _fault(path: Path, *, whole: bool) -> str:
    """Why a file cannot be taken, or nothing."""
    try:
        with Image.open(path) as image:
            if whole:
                image.load()
            # Pillow cuts more than 8 bits at 255, which leaves a picture white.
            deep = image.mode in ("I", "F") or image.mode.startswith("I;16")
            return f"mode {image.mode} has more than 8 bits a channel; convert it" if deep else ""
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        return _first_line(error)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _labelled(folder: Path, classes: dict[str, int] | None = None) -> Any:
    """timm's data set of a tree of classes."""
    try:
        options: Any = {} if classes is None else {"class_map": classes}
        found = create_dataset("", str(folder), search_split=False, **options)
    except RuntimeError:
        found = None
    if found is None or not len(found):
        raise InputError(f"{folder} holds no pictures in folders named after their classes")
    return found


def _held_out(labels: list[int], share: float) -> np.ndarray:
    """A mask with `share` of each class, but neither none nor all of one that has two pictures."""
    label_array, chosen = np.asarray(labels), np.zeros(len(labels), bool)
    for label in np.unique(label_array):
        places = np.flatnonzero(label_array == label)
        if len(places) < 2:
            raise InputError("a class has a single picture, so none can be held out; add pictures or a val/")
        count = min(max(1, round(share * len(places))), len(places) - 1)
        chosen[np.random.default_rng((0, int(label))).permutation(places)[:count]] = True
    return chosen


def read_labelled(root: str | Path, classes: list[str]) -> ImageDataset:
    """Labelled pictures DATA/<class>/* for a network that knows `classes`.

    Raises:
        InputError: no pictures, a class that the network does not know, or a file that is no picture.
    """
    folder = check_folder(root, "data folder")
    strange = {child.name for child in folder.iterdir() if child.is_dir()} - set(classes)
    if strange:
        raise InputError(f"{folder} has the class {min(strange)!r}, which the network does not know")
    found = _labelled(folder, {name: label for label, name in enumerate(classes)})
    for path, _ in found.reader.samples:
        # timm reads the next picture instead of one that it cannot decode, and its label with it.
        check_picture(Path(path), whole=True)
    return found


class PlainPictures(torch.utils.data.Dataset):
    """Pictures without labels: one file, or all below a folder, in order of their paths.

    Attributes:
        paths: of those that can be read.
        unreadable: the others, with the reason.
        transform: of a PIL image, as in timm's data sets.

    Args:
        source: file or folder.
        progress: called as `progress(fraction, "12 of 80")`.

    Raises:
        InputError: it does not exist, or holds no picture that can be read.
    """

    def __init__(self, source: str | Path, progress: Callable[[float, str], None] | None = None) -> None:
        place = check_path(source, "pictures")
        if not place.exists():
            raise InputError(f"{place} does not exist; name a picture or a folder of pictures")
        suffixes = set(get_img_extensions())
        found = (
            [place]
            if place.is_file()
            else sorted(p for p in place.rglob("*") if p.suffix.lower() in suffixes)
        )
        self.paths: list[Path] = []
        self.unreadable: dict[str, str] = {}
        self.transform: Any = None
        for number, path in enumerate(found):
            if fault := _fault(path, whole=True):
                self.unreadable[str(path)] = fault
            else:
                self.paths.append(path)
            if progress is not None:
                progress((number + 1) / len(found), f"{number + 1} of {len(found)} pictures looked at")
        if not self.paths:
            bad = f"; {next(iter(self.unreadable))} cannot be read" if self.unreadable else ""
            raise InputError(f"{place} holds no picture that can be read{bad}")

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        with Image.open(self.paths[index]) as image:
            picture = image.convert("RGB")
        return (picture if self.transform is None else self.transform(picture)), 0
