"""Score a classifier on a labelled folder: superclass accuracy by distortion and intensity."""

import csv
import itertools
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Int, UInt8
from PIL import Image

from hexad.core.errors import InputError
from hexad.core.files import atomic_open, write_json
from hexad.core.validation import check_file
from hexad.vision_robustness.images import Rgb, read_image
from hexad.vision_robustness.laion_c.distortions import DISTORTIONS
from hexad.vision_robustness.laion_c.images import benchmark_frame
from hexad.vision_robustness.laion_c.labelled import CLEAN, LabelledImage, find_labelled, parse_name
from hexad.vision_robustness.laion_c.levels import LEVELS
from hexad.vision_robustness.laion_c.scoring import SuperclassMapper

if TYPE_CHECKING:
    from hexad.vision_robustness.laion_c.models import Classifier


@dataclass(frozen=True)
class Evaluation:
    """What a classifier answered to every image.

    Attributes:
        model: name of the classifier.
        superclasses: their names.
        images: the images.
        predicted: number of the superclass answered to each.
    """

    model: str
    superclasses: tuple[str, ...]
    images: tuple[LabelledImage, ...]
    predicted: Int[np.ndarray, " images"]

    @property
    def correct(self) -> Bool[np.ndarray, " images"]:
        """Whether each answer is right; two observers' are compared by `error_consistency`."""
        return np.array([self.superclasses[p] for p in self.predicted]) == [i.label for i in self.images]

    def cells(self) -> dict[tuple[str, int], tuple[int, float]]:
        """Number of images and accuracy of each (type, level)."""
        return self._grouped(lambda image: (image.distortion, image.level))

    def by_superclass(self) -> dict[str, tuple[int, float]]:
        """Number of distorted images and accuracy of each superclass; of all images if none is distorted."""
        distorted = any(image.level > 0 for image in self.images)
        found = self._grouped(lambda image: image.label if image.level > 0 or not distorted else "")
        found.pop("", None)
        return found

    def _grouped(self, key: Callable[[LabelledImage], Any]) -> dict[Any, tuple[int, float]]:
        groups: dict[Any, list[bool]] = {}
        for image, right in zip(self.images, self.correct.tolist(), strict=True):
            groups.setdefault(key(image), []).append(right)
        return {name: (len(rights), sum(rights) / len(rights)) for name, rights in sorted(groups.items())}

    def summary(self) -> dict[str, Any]:
        """All figures as JSON values.

        `mean` is the mean accuracy over the distorted cells that there are; `benchmark_mean`, the figure that
        the paper's leaderboard gives, is None unless all 30 are there; `missing` names the others.
        """
        cells = self.cells()
        distorted = {cell: values for cell, values in cells.items() if cell[1] > 0}
        wanted = [(name, level) for name in DISTORTIONS for level in LEVELS]
        missing = [cell for cell in wanted if cell not in cells]
        mean = _mean([accuracy for _, accuracy in distorted.values()])
        names = sorted({name for name, _ in distorted})
        levels = sorted({level for _, level in distorted})
        return {
            "model": self.model,
            "images": len(self.images),
            "clean": cells[CLEAN, 0][1] if (CLEAN, 0) in cells else None,
            "mean": mean,
            "benchmark_mean": mean if not missing and len(distorted) == len(wanted) else None,
            "missing": [f"{name}/{level}" for name, level in missing] if distorted else [],
            "by_distortion": {n: _mean([a for (c, _), (_, a) in distorted.items() if c == n]) for n in names},
            "by_level": {
                str(k): _mean([a for (_, c), (_, a) in distorted.items() if c == k]) for k in levels
            },
            "by_superclass": {
                name: {"images": count, "accuracy": accuracy}
                for name, (count, accuracy) in self.by_superclass().items()
            },
            "cells": [
                {"distortion": name, "level": level, "images": count, "accuracy": accuracy}
                for (name, level), (count, accuracy) in cells.items()
            ],
        }

    def write(self, folder: Path) -> list[Path]:
        """Write report.json, report.csv (a row a cell), predictions.csv (a row an image) and accuracy.png."""
        from hexad.core.plots import save_figure
        from hexad.vision_robustness.laion_c.figures import accuracy_figure

        summary = self.summary()
        write_json(folder / "report.json", summary)
        _write_csv(
            folder / "report.csv", list(summary["cells"][0]), [list(c.values()) for c in summary["cells"]]
        )
        _write_csv(
            folder / "predictions.csv",
            ["path", "distortion", "level", "label", "predicted", "correct"],
            [
                [image.name, image.distortion, image.level, image.label, self.superclasses[p], bool(right)]
                for image, p, right in zip(self.images, self.predicted, self.correct, strict=True)
            ],
        )
        figure = accuracy_figure(
            {cell: accuracy for cell, (_, accuracy) in self.cells().items()}, 1 / len(self.superclasses)
        )
        save_figure(figure, folder / "accuracy.png")
        return [folder / n for n in ("report.json", "report.csv", "predictions.csv", "accuracy.png")]


def evaluate_folder(
    classifier: "Classifier",
    root: str | Path,
    mapper: SuperclassMapper | None = None,
    *,
    clean: str | Path | None = None,
    batch_size: int = 64,
    progress: Callable[[int, int], Any] = lambda done, total: None,
) -> Evaluation:
    """Classify every image of a labelled folder.

    An image of 224 x 224 is taken whole, as the benchmark's own evaluation does; another is first cut by the
    benchmark's frame. Either is then scaled to the network's input and normalised as the network wants it.

    Args:
        classifier: from `models.load_classifier`.
        root: `<type>/intensity_level_<k>/<superclass>/*`, or `<superclass>/*`.
        mapper: superclasses; default the 16 of LAION-C.
        clean: another folder `<superclass>/*` of undistorted images, for comparison.
        batch_size: images at a time.
        progress: called with (images done, images in all).

    Raises:
        InputError: a folder has another layout, an image cannot be read, or the network's output is not
            what the mapper wants.

    Warns:
        UserWarning: images lie in no superclass folder; they are not scored.
    """
    mapper = mapper or SuperclassMapper()
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise InputError(f"batch size is {batch_size!r}; it must be an integer of at least 1")
    images = find_labelled(root, mapper.names)
    if clean is not None:
        undistorted = find_labelled(clean, mapper.names)
        if any(image.level for image in undistorted):
            raise InputError(f"--clean {clean} holds distorted images; give a folder <superclass>/*")
        if any(image.distortion == CLEAN for image in images):
            raise InputError(f"{root} holds undistorted images itself; leave out --clean")
        images += undistorted
    predicted = []
    for batch in _batches(images, batch_size, classifier.size):
        predicted.append(mapper.predict(classifier.logits(batch)))
        progress(sum(map(len, predicted)), len(images))
    return Evaluation(classifier.name, mapper.names, tuple(images), np.concatenate(predicted))


def evaluate_predictions(path: str | Path, mapper: SuperclassMapper | None = None) -> Evaluation:
    """Score outputs that were computed elsewhere.

    Args:
        path: an `.npz` with `paths` (n,), each `<type>/intensity_level_<k>/<superclass>/<file>` or
            `<superclass>/<file>`, and `logits` or `probs` (n, classes).
        mapper: superclasses; default the 16 of LAION-C.

    Raises:
        InputError: the file lacks an array, shapes disagree, a path is there twice or names no type, level or
            superclass, or the values are no logits or probabilities.
    """
    mapper = mapper or SuperclassMapper()
    file = check_file(path, "predictions")
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except Exception as error:
        # numpy raises whatever the damage leads to; its words advise to load the file all the same.
        raise InputError(f"predictions {file} are damaged, or are no .npz of plain arrays") from error
    values = [name for name in ("logits", "probs") if name in arrays]
    if "paths" not in arrays or len(values) != 1:
        raise InputError(
            f"predictions {file} must hold `paths` and either `logits` or `probs`; "
            f"they hold {', '.join(arrays) or 'no array'}"
        )
    paths, outputs = arrays["paths"], arrays[values[0]]
    if paths.size == 0:
        raise InputError(f"predictions {file} list no image")
    if paths.ndim != 1 or paths.dtype.kind != "U":
        raise InputError(f"`paths` of {file} must be text of shape (n,), not {paths.dtype} of {paths.shape}")
    if outputs.ndim != 2 or len(outputs) != len(paths):
        raise InputError(
            f"`{values[0]}` of {file} must have shape ({len(paths)}, classes), one row a path, "
            f"not {outputs.shape}"
        )
    images = tuple(parse_name(name, mapper.names) for name in paths.tolist())
    name, times = Counter(image.name for image in images).most_common(1)[0]
    if times > 1:
        raise InputError(f"predictions {file} list the path {name!r} {times} times")
    scores = mapper.scores_of_logits if values[0] == "logits" else mapper.scores
    return Evaluation(file.stem, mapper.names, images, scores(outputs).argmax(axis=1))


def model_input(pixels: Rgb, size: int) -> UInt8[np.ndarray, "size size 3"]:
    """An image as the network sees it: in the benchmark's frame, scaled (bilinear) to `size`."""
    if pixels.shape[:2] != (224, 224):
        pixels = benchmark_frame(pixels)
    if size != 224:
        pixels = np.asarray(Image.fromarray(pixels).resize((size, size), Image.Resampling.BILINEAR))
    return pixels


def _batches(images: Sequence[LabelledImage], batch_size: int, size: int) -> Iterator[np.ndarray]:
    """Read batches in threads, two ahead of the network."""

    def load(image: LabelledImage) -> np.ndarray:
        return model_input(read_image(image.path)[0], size)

    pool = ThreadPoolExecutor(os.cpu_count())
    chunks = (images[first : first + batch_size] for first in range(0, len(images), batch_size))
    started = ([pool.submit(load, image) for image in chunk] for chunk in chunks)
    try:
        ahead = deque(itertools.islice(started, 3))
        while ahead:
            yield np.stack([future.result() for future in ahead.popleft()])
            ahead.extend(itertools.islice(started, 1))
    finally:
        # An image that cannot be read, or Ctrl-C, need not wait for hundreds of others.
        pool.shutdown(cancel_futures=True)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _write_csv(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with atomic_open(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
