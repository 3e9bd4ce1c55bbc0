"""Labelled folders of images: `<type>/intensity_level_<k>/<superclass>/*`, or `<superclass>/*`."""

import re
import warnings
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hexad.core.errors import InputError
from hexad.core.validation import check_choice, check_folder, near_miss
from hexad.vision_robustness.images import SUFFIXES, find_images
from hexad.vision_robustness.laion_c.distortions import DISTORTIONS

CLEAN = "clean"
"""Name of the type of images that were not distorted; its level is 0."""
_LEVEL = "intensity_level_"


@dataclass(frozen=True)
class LabelledImage:
    """A file, with the distortion type, level and superclass that its folders name."""

    path: Path
    name: str
    distortion: str
    level: int
    label: str


def find_labelled(root: str | Path, superclasses: tuple[str, ...]) -> list[LabelledImage]:
    """The images of a folder in the layout of the benchmark, or of plain superclass folders (type `clean`).

    Images that lie in no superclass folder are counted in a warning.

    Raises:
        InputError: the folder is missing, holds neither, a folder's name is no type, level or superclass, or
            something is empty or cannot be read.
    """
    root = check_folder(root, "labelled folder")
    place = root.resolve()
    if place.name.startswith(_LEVEL):
        raise InputError(f"{root} holds one intensity; name the folder of all types, {place.parent.parent}")
    folders = {folder: _subfolders(folder) for folder in _subfolders(root)}
    if any(folder.name.startswith(_LEVEL) for folder in folders):
        raise InputError(f"{root} holds one type; name the folder of all types, {place.parent}")
    if any(level.name.startswith(_LEVEL) for levels in folders.values() for level in levels):
        cells: list[tuple[Path, str, int]] = []
        for folder, levels in folders.items():
            if not any(level.name.startswith(_LEVEL) for level in levels):
                raise InputError(f"{folder} holds no folders intensity_level_1 to 5; move it elsewhere")
            check_choice("distortion", folder.name, DISTORTIONS, f"in {root}")
            cells += [(level, folder.name, _level(level.name, str(folder))) for level in levels]
        unlabelled = [*_images_in(root), *(image for folder in folders for image in _images_in(folder))]
    else:
        cells, unlabelled = [(root, CLEAN, 0)], []
    found = [image for cell in cells for image in _of_cell(root, *cell, superclasses)]
    unlabelled += [image for cell in cells for image in _images_in(cell[0])]
    if unlabelled:
        warnings.warn(
            f"{len(unlabelled)} images lie in no superclass folder and are not scored, the first: "
            f"{unlabelled[0]}",
            stacklevel=2,
        )
    return found


def parse_name(name: str, superclasses: tuple[str, ...]) -> LabelledImage:
    """The labels in a file's path below its labelled folder, such as `mosaic/intensity_level_3/dog/a.JPEG`.

    Raises:
        InputError: the path has another form, or names no type, level or superclass.
    """
    path = PurePosixPath(name.replace("\\", "/"))
    parts, where = path.parts, f"path {name!r}"
    if len(parts) >= 4 and parts[1].startswith(_LEVEL):
        distortion = check_choice("distortion", parts[0], DISTORTIONS, f"in {where}")
        level, label = _level(parts[1], where), parts[2]
    elif len(parts) >= 2:
        distortion, level, label = CLEAN, 0, parts[0]
    else:
        raise InputError(
            f"{where} is neither <type>/intensity_level_<k>/<superclass>/<file> nor <superclass>/<file>"
        )
    _check_label(label, superclasses, where)
    return LabelledImage(Path(path), path.as_posix(), distortion, level, label)


def _of_cell(
    root: Path, folder: Path, distortion: str, level: int, superclasses: tuple[str, ...]
) -> list[LabelledImage]:
    labels = _subfolders(folder)
    if not labels:
        raise InputError(
            f"{folder} holds no superclass folders; sort its images into folders named "
            f"{', '.join(superclasses[:3])} ..."
        )
    for label in labels:
        _check_label(label.name, superclasses, str(folder))
    return [
        LabelledImage(path, path.relative_to(root).as_posix(), distortion, level, label.name)
        for label in labels
        for path in find_images(label)
    ]


def _check_label(label: str, superclasses: tuple[str, ...], where: str) -> None:
    if label not in superclasses:
        raise InputError(
            f"{label!r} in {where} is no superclass; {near_miss(label, superclasses)} "
            "(another mapping: --mapping FILE)"
        )


def _subfolders(folder: Path) -> list[Path]:
    found = []
    for path in _listed(folder):
        if path.is_dir():
            found.append(path)
        elif path.is_symlink() and not path.exists():
            raise InputError(f"{path} is a broken link; mend it, or remove it")
    return found


def _images_in(folder: Path) -> list[Path]:
    return [path for path in _listed(folder) if path.suffix.lower() in SUFFIXES and path.is_file()]


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise InputError(f"{folder} cannot be read ({error.strerror or error})") from None


def _level(name: str, where: str) -> int:
    if not re.fullmatch(_LEVEL + "[1-5]", name):
        raise InputError(f"{name!r} in {where} is no intensity; known: intensity_level_1 to 5")
    return int(name.removeprefix(_LEVEL))
