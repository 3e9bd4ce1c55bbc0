"""Labelled pictures in folders: a tree with train/ and val/, or one tree of which a share is held out."""

import hashlib
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.data.dataset import ImageDataset
from timm.data.readers.reader_image_folder import ReaderImageFolder
from timm.utils.misc import natural_key

from hexad.core.errors import InputError
from hexad.core.validation import check_folder, check_path, check_range
from hexad.vision_robustness.images import find_images

VALIDATION = ("val", "valid", "validation", "test")


@dataclass(frozen=True)
class Pictures:
    """A labelled set for training and one for validation.

    Attributes:
        train: timm's data set; set its `transform`.
        val: the same for validation.
        classes: names, in the order of the labels.
        digest: of file names and contents, by which a resumed run knows its data.
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

    Each is decoded once, for timm would read another in the place of one that it cannot decode. Hidden files
    are left out.

    Args:
        root: the tree.
        held_out: share of each class that is kept for validation where there is no val/, drawn by a fixed
            seed, at least one picture of a class.
        progress: called as `progress(fraction, "12 of 80")`.

    Raises:
        InputError: no such folder, no pictures, pictures outside the folders of the classes or deeper in
            them, fewer than two classes, a class in val/ that train/ lacks, or a file that is no picture.
    """
    folder = check_folder(root, "data folder")
    check_range("held_out", held_out, 0, 1, low_open=True, high_open=True)
    if (folder / "train").is_dir():
        val = next((folder / name for name in VALIDATION if (folder / name).is_dir()), None)
        if val is None:
            raise InputError(f"{folder} has train/ but none of {'/, '.join(VALIDATION)}/; add one")
        train_set = _labelled(folder / "train")
        names = train_set.reader.class_to_idx
        val_set = _labelled(val, names, f"{folder / 'train'} lacks")
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
    for path, (fault, content) in zip(paths, _look_at(paths, progress), strict=True):
        _refuse(path, fault)
        digest.update(f"{path.relative_to(folder)}\0{content}\n".encode())
    return Pictures(train_set, val_set, tuple(sorted(names, key=names.get)), digest.hexdigest()[:16])


def _look_at(
    paths: Sequence[Path], progress: Callable[[float, str], None] | None
) -> Iterable[tuple[str, str]]:
    """Why each file cannot be taken as a picture of 8 bits a channel, or nothing; and a digest of it."""
    with ThreadPool() as pool:  # Pillow decodes without Python's lock
        for number, found in enumerate(pool.imap(_fault, paths, chunksize=16)):
            yield found
            if progress is not None:
                progress((number + 1) / len(paths), f"{number + 1} of {len(paths)} pictures looked at")


def _refuse(path: Path, fault: str) -> None:
    if fault:
        raise InputError(f"{path} cannot be read as a picture ({fault}); mend or remove it")


def _fault(path: Path) -> tuple[str, str]:
    try:
        content = path.read_bytes()
        with Image.open(io.BytesIO(content)) as image:
            image.load()  # of a file that is cut off the header alone is good
            # Pillow cuts more than 8 bits at 255, which leaves a picture white.
            deep = image.mode in ("I", "F") or image.mode.startswith("I;16")
            fault = f"mode {image.mode} has more than 8 bits a channel; convert it" if deep else ""
            return fault, hashlib.sha256(content).hexdigest()
    except Image.UnidentifiedImageError:
        return "no picture that Pillow knows", ""
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        return _first_line(error), ""


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


class _FolderReader(ReaderImageFolder):
    """timm's reader over files that were found and checked here."""

    def __init__(self, root: Path, samples: list[tuple[str, int]], classes: dict[str, int]) -> None:
        self.root, self.samples, self.class_to_idx = str(root), samples, classes


def _labelled(folder: Path, classes: dict[str, int] | None = None, unknown: str = "") -> Any:
    """timm's data set of the pictures FOLDER/<class>/*, in timm's order.

    Args:
        folder: the tree.
        classes: labels by name; None numbers the folders.
        unknown: who does not know a class that is not among `classes`.
    """
    found: list[tuple[str, Path]] = []
    for path in find_images(folder):
        parts = path.relative_to(folder).parts
        if len(parts) != 2:
            place = "in no class's folder" if len(parts) == 1 else "deeper than its class's folder"
            raise InputError(f"{path} lies {place}; pictures belong in {folder}/CLASS/")
        found.append((parts[0], path))
    if classes is None:
        names = sorted({name for name, _ in found}, key=natural_key)
        classes = {name: label for label, name in enumerate(names)}
    if strange := {name for name, _ in found} - set(classes):
        raise InputError(f"{folder} has the class {min(strange)!r}, which {unknown}")
    samples = [(str(path), classes[name]) for name, path in found]
    samples.sort(key=lambda sample: natural_key(sample[0]))
    return ImageDataset(str(folder), reader=_FolderReader(folder, samples, classes))


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


def read_labelled(
    root: str | Path, classes: list[str], progress: Callable[[float, str], None] | None = None
) -> ImageDataset:
    """Labelled pictures DATA/<class>/* for a network that knows `classes`.

    Raises:
        InputError: no pictures, a class that the network does not know, or a file that is no picture.
    """
    folder = check_folder(root, "data folder")
    labels = {name: label for label, name in enumerate(classes)}
    found = _labelled(folder, labels, "the network does not know")
    paths = [Path(path) for path, _ in found.reader.samples]
    for path, (fault, _) in zip(paths, _look_at(paths, progress), strict=True):
        _refuse(path, fault)
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
        unread: dict[Path, str] = {}
        found = [place] if place.is_file() else find_images(place, unread)
        self.paths: list[Path] = []
        self.unreadable = {str(path): reason for path, reason in unread.items()}
        self.transform: Any = None
        for path, (fault, _) in zip(found, _look_at(found, progress), strict=True):
            if fault:
                self.unreadable[str(path)] = fault
            else:
                self.paths.append(path)
        if not self.paths:
            bad = f"; {next(iter(self.unreadable))} cannot be read" if self.unreadable else ""
            raise InputError(f"{place} holds no picture that can be read{bad}")

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        with Image.open(self.paths[index]) as image:
            picture = image.convert("RGB")
        return (picture if self.transform is None else self.transform(picture)), 0
