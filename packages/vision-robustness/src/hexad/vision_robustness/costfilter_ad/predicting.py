"""Judging a folder: what `hexad vision-robustness costfilter-ad predict` does."""

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from PIL import Image

from hexad.core.errors import InputError
from hexad.core.files import atomic_open, atomic_path, writable_folder, write_json
from hexad.vision_robustness.costfilter_ad.filter import CostFilter, image_score
from hexad.vision_robustness.costfilter_ad.folders import (
    GOOD,
    ImageFiles,
    TestImage,
    find_test_images,
    read_mask,
    shrink_mask,
    square,
)
from hexad.vision_robustness.costfilter_ad.losses import to_image
from hexad.vision_robustness.costfilter_ad.metrics import Quality, image_quality, library, measure
from hexad.vision_robustness.costfilter_ad.pictures import (
    GREEN,
    RED,
    enlarged,
    outlined,
    overlay,
    side_by_side,
)
from hexad.vision_robustness.images import Rgb

COLUMNS = ("path", "product", "kind", "score", "base_score", "share_above")
WRITTEN = ("heatmaps", "masks", "maps", "scores.csv", "report.json")
MADE_BY = "hexad vision-robustness costfilter-ad predict"


@dataclass
class _Judged:
    """What is kept of each image for the metrics."""

    image: TestImage
    score: float
    base_score: float
    share: float
    map: Float[np.ndarray, "side side"]
    base: Float[np.ndarray, "side side"]
    mask: Bool[np.ndarray, "side side"] | None


def predict_folder(
    model: CostFilter,
    source: str | Path,
    target: str | Path,
    *,
    raw: bool = False,
    mask_threshold: int | None = None,
    progress: Callable[[float, str], None] = lambda fraction, note: None,
) -> dict[str, Any]:
    """Write a heat map, a mask and a score for each image of a folder; measure them where the truth is known.

    Into `target` go heatmaps/<name>.png (the image with what was found outlined in red and the truth in
    green, beside the heat map; small ones enlarged), masks/<name>.png, scores.csv and report.json, and with
    `raw` maps/<name>.npy. Masks and maps are at the size of the image. Metrics are taken at the detector's
    size, to which true masks are shrunk so that no region vanishes; whether an image is good says its folder.
    Images that cannot be read are left out and named in the report.

    Args:
        model: a trained filter.
        source: a folder with test/<kind>, any other folder of images, or one image.
        target: where to write: a new or empty folder, or one of an earlier call, whose files are replaced.
        raw: keep the maps themselves too, as float32.
        mask_threshold: cuts true masks that are not binary; without it they are refused.
        progress: called as `progress(fraction, "12 of 80")`.

    Returns:
        what report.json says.

    Raises:
        InputError: no images, none that can be read, a mask that does not fit its image, or a folder that
            holds other files.
    """
    images = find_test_images(source, model.classes)
    extractor: Any = getattr(model.detector, "extractor", None)
    side = model.detector.image_size
    files = ImageFiles([image.path for image in images], side, getattr(extractor, "smallest", 1))
    known = all(image.kind is not None for image in images)
    if known:
        library()
    folder = Path(target)
    if folder.resolve() == Path(source).resolve() or Path(source).resolve() in folder.resolve().parents:
        raise InputError(f"output folder {folder} lies in {source}, which is judged; name another")
    if mask_threshold is not None and not 0 <= mask_threshold < 255:
        raise InputError(f"mask_threshold is {mask_threshold}; it must lie in 0 to 254")
    _check_output(folder)
    notes = _notes(images)
    notes += _check_masks(images, files, mask_threshold)
    writable_folder(folder, "output folder")
    _empty(folder)
    judged: list[_Judged] = []
    unread: dict[str, str] = {}
    for number, image in enumerate(images):
        try:
            pixels, had_alpha = files.read(number)
        except InputError as error:
            unread[str(image.path)] = str(error)
        else:
            if had_alpha:
                notes.append(f"{image.path}: alpha was composited on white")
            judged.append(_judge(model, image, pixels, folder, raw, mask_threshold))
        progress((number + 1) / len(images), f"{number + 1} of {len(images)}")
    if not judged:
        raise InputError(next(iter(unread.values())))
    with atomic_open(folder / "scores.csv") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for one in judged:
            product, kind = model.classes[one.image.product], one.image.kind or ""
            writer.writerow((one.image.path, product, kind, one.score, one.base_score, one.share))
    report: dict[str, Any] = {
        "made_by": MADE_BY,
        "images": len(judged),
        "unreadable": unread,
        "notes": notes,
        "folder": str(folder),
        "mixture": asdict(model.mixture),
        "detector": model.detector.name,
        "metrics": _metrics(judged, model.classes) if known else None,
    }
    write_json(folder / "report.json", report)
    return report


def _check_output(folder: Path) -> None:
    """Refuse a folder with files that are not of an earlier call."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    try:
        own = json.loads((folder / "report.json").read_text(encoding="utf-8"))["made_by"] == MADE_BY
    except (OSError, ValueError, KeyError, TypeError):
        own = False
    if not own or {path.name for path in folder.iterdir()} - set(WRITTEN):
        raise InputError(f"output folder {folder} holds other files; name one that is empty or new")


def _empty(folder: Path) -> None:
    """Take away what an earlier call left, and leave a report that says whose folder it is."""
    for name in WRITTEN[:-1]:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    write_json(folder / "report.json", {"made_by": MADE_BY, "finished": False})


def _notes(images: list[TestImage]) -> list[str]:
    """What keeps metrics from being taken though part of the truth is there."""
    found = []
    loose = [image for image in images if image.kind is None]
    if loose and len(loose) < len(images):
        found.append(f"{loose[0].path} lies in no folder of a kind, so nothing is measured")
    defective = [image for image in images if image.kind not in (None, GOOD)]
    bare = [image for image in defective if image.mask is None]
    if bare and len(bare) < len(defective):
        found.append(
            f"{len(bare)} of {len(defective)} images with a defect have no mask (such as {bare[0].path}; "
            "looked for ground_truth/<kind>/<name>_mask.png and <name>.png), so pixels of its product are "
            "not measured"
        )
    return found


def _check_masks(images: list[TestImage], files: ImageFiles, threshold: int | None) -> list[str]:
    """Read every mask before anything is written; names those that are empty."""
    empty = []
    for number, image in enumerate(images):
        if image.mask is not None:
            try:
                height, width = files.pixels(number).shape[:2]
            except InputError:
                continue  # left out later
            if not read_mask(image.mask, (height, width), threshold).any():
                empty.append(f"{image.mask}: the mask of a defect is empty")
    return empty


def _judge(
    model: CostFilter,
    image: TestImage,
    pixels: Rgb,
    folder: Path,
    raw: bool,
    mask_threshold: int | None,
) -> _Judged:
    side, threshold = model.detector.image_size, model.mixture.threshold
    height, width = pixels.shape[:2]
    found = model.predict(square(pixels, side)[None], torch.tensor([image.product]))
    heat = to_image(found.anomaly_map[:, None], (height, width))[0, 0].numpy()
    above = heat > threshold
    drawn, mask = outlined(pixels, above, RED), None
    if image.mask is not None:
        truth = read_mask(image.mask, (height, width), mask_threshold)
        drawn = outlined(drawn, truth, GREEN)
        mask = shrink_mask(truth, side)
    elif image.kind == GOOD:
        mask = np.zeros((side, side), bool)
    picture = side_by_side(*map(enlarged, (drawn, overlay(pixels, heat, threshold / 2, 2 * threshold))))
    for kind, array in (("heatmaps", picture), ("masks", above.astype(np.uint8) * 255)):
        path = folder / kind / f"{image.name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary:
            Image.fromarray(array).save(temporary, "PNG")
    if raw:
        path = folder / "maps" / f"{image.name}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_open(path, "wb") as file:
            np.save(file, heat)
    return _Judged(
        image,
        float(found.pred_score[0]),
        float(image_score(found.base_map)[0]),
        float(above.mean()),
        found.anomaly_map[0].numpy(),
        found.base_map[0].numpy(),
        mask,
    )


def _metrics(judged: list[_Judged], classes: tuple[str, ...]) -> dict[str, Any]:
    """For each product the metrics of the filtered maps and of the detector's own."""
    found = {}
    for number, name in enumerate(classes):
        chosen = [one for one in judged if one.image.product == number]
        if chosen:
            found[name] = {
                "filtered": asdict(_quality(chosen, "map", "score")),
                "base": asdict(_quality(chosen, "base", "base_score")),
            }
    return found


def _quality(judged: list[_Judged], maps: str, scores: str) -> Quality:
    values = np.array([getattr(one, scores) for one in judged])
    defective = np.array([one.image.kind != GOOD for one in judged])
    masks = [one.mask for one in judged]
    if all(mask is not None for mask in masks):
        return measure(np.stack([getattr(one, maps) for one in judged]), np.array(masks), values, defective)
    # Defects without masks: images can be told apart, pixels cannot.
    return Quality(image_quality(defective, values), None, None, None, None)
