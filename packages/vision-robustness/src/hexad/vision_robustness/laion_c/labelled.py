"""Labelled folders of images: `<type>/intensity_level_<k>/<superclass>/*`, or `<superclass>/*`."""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hexad.core.errors import InputError
from hexad.core.validation import check_folder, near_miss
from hexad.vision_robustness.laion_c.images import find_images

CLEAN = "clean"
"""Name of the type of images that were not distorted; its level is 0."""


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

    Raises:
        InputError: the folder is missing, holds neither, a folder's name is no superclass, or one is empty.
    """
    root = check_folder(root, "labelled folder")
    types = {
        folder.name: levels
        for folder in _subfolders(root)
        if (levels := [level for level in _subfolders(folder) if _level(level.name) is not None])
    }
    if not types:
        return _of_cell(root, root, CLEAN, 0, superclasses)
    stray = [folder.name for folder in _subfolders(root) if folder.name not in types]
    if stray:
        raise InputError(f"{root / stray[0]} holds no folders intensity_level_1 to 5; move it elsewhere")
    return [
        image
        for name, levels in types.items()
        for folder in sorted(levels, key=lambda level: _level(level.name) or 0)
        for image in _of_cell(root, folder, name, _level(folder.name) or 0, superclasses)
    ]


def parse_name(name: str, superclasses: tuple[str, ...]) -> LabelledImage:
    """The labels in a file's path below its labelled folder, such as `mosaic/intensity_level_3/dog/a.JPEG`.

    Raises:
        InputError: the path has another form, or names no superclass.
    """
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if len(parts) >= 4 and (level := _level(parts[1])) is not None:
        distortion, label = parts[0], parts[2]
    elif len(parts) >= 2:
        distortion, level, label = CLEAN, 0, parts[0]
    else:
        raise InputError(
            f"path {name!r} is neither <type>/intensity_level_<k>/<superclass>/<file> nor <superclass>/<file>"
        )
    _check_label(label, superclasses, f"path {name!r}")
    return LabelledImage(Path(name), name, distortion, level, label)


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
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _level(name: str) -> int | None:
    match = re.fullmatch(r"intensity_level_(\d+)", name)
    return int(match.group(1)) if match else None
