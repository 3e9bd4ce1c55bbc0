"""Samples to train and to choose on: features of synthetic anomalies, computed once and kept.

The backbone is the slow part and never changes, so each sample's features are stored as half floats, in
memory or in a folder.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float16, Int64, UInt8
from torch import Tensor
from torch.utils.data import Dataset

from hexad.core.errors import InputError
from hexad.core.files import writable_folder, write_json
from hexad.core.validation import check_count
from hexad.vision_robustness.costfilter_ad.detectors import Detector
from hexad.vision_robustness.costfilter_ad.synthetic import SyntheticAnomaly

BATCH = 8
Sample = tuple[list[Tensor], Tensor, int]


class Images(Protocol):
    """Images by number, read when asked for: a list of tensors, or files."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Tensor: ...


class SampleBank(Dataset[Sample]):
    """Features, mask and product class of each sample.

    Args:
        features: for each layer (n, channels, height, width), half floats; memory maps serve.
        masks: (n, side, side), 1 where anomalous.
        classes: numbers of the product classes.
    """

    def __init__(
        self,
        features: Sequence[Float16[np.ndarray, "n channels height width"]],
        masks: UInt8[np.ndarray, "n side side"],
        classes: Int64[np.ndarray, " n"],
    ) -> None:
        self.features, self.masks, self.classes = list(features), masks, classes

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, index: int) -> Sample:
        layers = [torch.from_numpy(layer[index].astype(np.float32)) for layer in self.features]
        return layers, torch.from_numpy(self.masks[index].astype(np.float32)), int(self.classes[index])

    def digest(self) -> str:
        """A hash of all samples."""
        found = hashlib.sha256()
        for array in (*self.features, self.masks, self.classes):
            found.update(str((array.dtype, array.shape)).encode())
            for part in np.array_split(array, max(1, len(array) // 64)):
                found.update(np.ascontiguousarray(part).data)
        return found.hexdigest()[:16]

    def batch(self, first: int, last: int) -> tuple[list[Tensor], Tensor]:
        """Features and classes of the samples first ... last - 1."""
        layers = [torch.from_numpy(layer[first:last].astype(np.float32)) for layer in self.features]
        return layers, torch.from_numpy(np.array(self.classes[first:last]))


def make_samples(
    detector: Detector,
    images: Images,
    classes: Sequence[int],
    anomaly: SyntheticAnomaly,
    count: int,
    seed: int,
    *,
    folder: str | Path | None = None,
    identity: Mapping[str, Any] | None = None,
    progress: Callable[[float, str], None] = lambda fraction, note: None,
) -> SampleBank:
    """Make `count` samples, image after image, again from the first when all had their turn.

    A sample depends on `seed` and its number alone. In a folder a finished bank is found again and not made
    twice; one that was begun is made anew.

    Args:
        detector: gives the features.
        images: normal images, (3, side, side), in [0, 1].
        classes: the product class of each image.
        anomaly: makes them anomalous, or leaves them.
        count: of samples.
        seed: of the anomalies.
        folder: where to keep them; default in memory.
        identity: what a bank in a folder depends on beside count and seed (a digest of the images, the
            detector, the anomaly's settings), as JSON values; with another it is made anew.
        progress: called as `progress(fraction, "12 of 80")`.

    Raises:
        InputError: no images or images of another size, as many classes as there are not, or a folder
            without `identity`.
    """
    check_count("count", count)
    check_count("seed", seed, 0)
    if folder is not None:
        folder = Path(folder)
        if not identity:
            raise InputError("samples in a folder are found again; say by `identity` what they depend on")
    if len(images) == 0 or len(images) != len(classes):
        raise InputError(
            f"there are {len(images)} images and {len(classes)} classes; give as many, at least one"
        )
    side = detector.image_size
    described = dict(identity or {}) | {"count": count, "seed": seed, "side": side}
    if folder is not None and (found := _kept(folder, described)) is not None:
        return found
    arrays: list[np.ndarray] = []
    masks = _array(folder, "masks", (count, side, side), np.uint8)
    numbers = _array(folder, "classes", (count,), np.int64)
    for first in range(0, count, BATCH):
        chosen = range(first, min(first + BATCH, count))
        made = []
        for number in chosen:
            image = images[number % len(images)]
            if not isinstance(image, Tensor) or image.shape != (3, side, side):
                shown = tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__
                raise InputError(
                    f"image {number % len(images)} is {shown}; the detector takes tensors of "
                    f"{(3, side, side)}"
                )
            made.append(anomaly(image, np.random.default_rng((seed, number))))
            masks[number] = made[-1][1].numpy()
            numbers[number] = classes[number % len(images)]
        with torch.no_grad():
            layers = detector.features(torch.stack([image for image, _ in made]))
        if not arrays:
            arrays = [
                _array(folder, f"layer{n}", (count, *layer.shape[1:]), np.float16)
                for n, layer in enumerate(layers)
            ]
        for array, layer in zip(arrays, layers, strict=True):
            array[chosen.start : chosen.stop] = layer.cpu().numpy()
        progress(chosen.stop / count, f"{chosen.stop} of {count}")
    if folder is not None:
        for array in (*arrays, masks, numbers):
            array.flush()  # ty: ignore[missing-attribute] - a memory map
        write_json(folder / "samples.json", described | {"layers": len(arrays)})
        return SampleBank(*_opened(folder, len(arrays)))
    return SampleBank(arrays, masks, numbers)


def _array(folder: Path | None, name: str, shape: tuple[int, ...], kind: Any) -> np.ndarray:
    if folder is None:
        return np.zeros(shape, kind)
    writable_folder(folder, "folder of samples")
    (folder / "samples.json").unlink(missing_ok=True)
    return np.lib.format.open_memmap(folder / f"{name}.npy", "w+", dtype=kind, shape=shape)


def _opened(folder: Path, layers: int) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    features = [np.load(folder / f"layer{n}.npy", mmap_mode="r") for n in range(layers)]
    return (
        features,
        np.load(folder / "masks.npy", mmap_mode="r"),
        np.load(folder / "classes.npy", mmap_mode="r"),
    )


def _kept(folder: Path, described: dict[str, Any]) -> SampleBank | None:
    try:
        meta = json.loads((folder / "samples.json").read_text(encoding="utf-8"))
        layers = meta.pop("layers")
        if meta != json.loads(json.dumps(described)):
            return None
        return SampleBank(*_opened(folder, layers))
    except (OSError, ValueError, KeyError, TypeError):
        return None
