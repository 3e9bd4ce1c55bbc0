"""Training on a folder: what `hexad vision-robustness costfilter-ad train` does.

Normal images are dealt into templates, training and validation images; the last two become synthetic samples.
Everything that is chosen (the detector's smoothing, lam, the threshold, the step) is chosen on the validation
samples.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from hexad.core.errors import InputError
from hexad.core.files import writable_folder, write_json
from hexad.core.validation import check_choice, check_count, check_range
from hexad.vision_robustness.costfilter_ad.detectors import (
    DETECTORS,
    Detector,
    FeatureReconstruction,
    TemplateMatching,
)
from hexad.vision_robustness.costfilter_ad.features import Lite0Features
from hexad.vision_robustness.costfilter_ad.filter import LIGHT, CostFilter, FilterConfig, Mixture
from hexad.vision_robustness.costfilter_ad.fitting import FitConfig, choose_base, fit
from hexad.vision_robustness.costfilter_ad.folders import ImageFiles, Product, find_products
from hexad.vision_robustness.costfilter_ad.metrics import library
from hexad.vision_robustness.costfilter_ad.samples import make_samples
from hexad.vision_robustness.costfilter_ad.saving import save_filter
from hexad.vision_robustness.costfilter_ad.synthetic import Foreground, SyntheticAnomaly, load_folder
from hexad.vision_robustness.costfilter_ad.textures import packaged_textures

VARIANCES = (0.8, 0.9, 0.95, 0.99)
"""Shares of variance that the reconstruction is tried with."""
MOST_FITTED = 200
"""Images of a class, at most, that a reconstruction is fitted to."""

SETTINGS = "settings.json"

Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class RunConfig:
    """How a filter is trained on a folder.

    Args:
        detector: "templates" or "reconstruction".
        image_size: side to which images are scaled, a multiple of 32.
        templates: normal images of each product that patches are compared with.
        validation: share of the other normal images that is held out.
        samples: synthetic samples to train on.
        validation_samples: synthetic samples to choose on.
        foreground: see `SyntheticAnomaly`.
        textures: folder of foreign textures; default the photographs of scikit-image.
        filter: shape of the filter.
        fit: of the training; its seed is that of everything else too.
    """

    detector: Literal["templates", "reconstruction"] = "templates"
    image_size: int = 224
    templates: int = 4
    validation: float = 0.2
    samples: int = 800
    validation_samples: int = 160
    foreground: Foreground = "all"
    textures: str | None = None
    filter: FilterConfig = LIGHT
    fit: FitConfig = field(default_factory=FitConfig)

    def __post_init__(self) -> None:
        check_choice("detector", self.detector, DETECTORS)
        check_count("image_size", self.image_size, 64)
        if self.image_size % 32:
            raise InputError(f"image_size is {self.image_size}; it must be a multiple of 32")
        for name in ("templates", "samples", "validation_samples"):
            check_count(name, getattr(self, name))
        check_range("validation", self.validation, 0, 1, low_open=True, high_open=True)


@dataclass(frozen=True)
class Split:
    """Normal images of a product, dealt out."""

    templates: list[Path]
    training: list[Path]
    validation: list[Path]


def deal(paths: Sequence[Path], templates: int, validation: float, seed: int) -> Split:
    """Deal normal images out at random: templates first, then a share for validation, the rest for training.

    Raises:
        InputError: too few of them.
    """
    if len(paths) < templates + 2:
        raise InputError(
            f"{paths[0].parent} holds {len(paths)} images; {templates} templates, one to train on and one to "
            f"choose on need {templates + 2}: add images or lower --templates"
        )
    order = [paths[index] for index in np.random.default_rng(seed).permutation(len(paths))]
    left = order[templates:]
    held = min(max(1, round(validation * len(left))), len(left) - 1)
    return Split(order[:templates], left[held:], left[:held])


def train_folder(
    source: str | Path,
    target: str | Path,
    config: RunConfig = RunConfig(),
    *,
    progress: Progress = lambda fraction, note: None,
) -> dict[str, Any]:
    """Train a filter on a folder in the layout of MVTec AD; only train/good is read.

    `target` is given model.safetensors, run.json, and what an interrupted run goes on from. The same call
    again goes on, or finds all done.

    Args:
        source: the folder, of one product or of several.
        target: the run's folder.
        config: how.
        progress: called as `progress(fraction, note)`.

    Returns:
        what run.json says: settings, how many images, what was chosen, and pixel AP on validation samples.

    Raises:
        InputError: too few, too small or unreadable images, a filter that does not fit the detector, a target
            inside the data, or a run with other settings in it.
    """
    library()
    products = find_products(source)
    textures = packaged_textures() if config.textures is None else load_folder(config.textures)
    splits = [
        deal(product.training(), config.templates, config.validation, config.fit.seed) for product in products
    ]
    if Path(target).resolve().is_relative_to(Path(source).resolve()):
        raise InputError(f"run folder {target} lies in the data, {source}; name another")
    extractor = Lite0Features()
    _check_sizes([path for product in products for path in product.training()], extractor.smallest)
    settings = _settings(products, textures, config)
    if not (Path(target) / SETTINGS).is_file():
        # What does not fit is said before a sample is made, or the folder taken.
        count = config.templates if config.detector == TemplateMatching.name else 1
        blank = torch.zeros(count, 3, config.image_size, config.image_size)
        CostFilter(TemplateMatching.fit(extractor, [blank]), config.filter)
    folder = _claim(Path(target), settings)

    def part(first: float, last: float, what: str) -> Progress:
        return lambda fraction, note: progress(first + fraction * (last - first), f"{what}: {note}")

    progress(0.0, "features of normal images")
    detectors = _detectors(extractor, splits, config)
    anomaly = SyntheticAnomaly(textures, foreground=config.foreground)
    banks = {}
    for name, count, seed, ends in (
        ("training", config.samples, 2 * config.fit.seed, (0.02, 0.3)),
        ("validation", config.validation_samples, 2 * config.fit.seed + 1, (0.3, 0.35)),
    ):
        paths = [getattr(split, name) for split in splits]
        numbers = _interleaved([len(files) for files in paths])
        images = ImageFiles([paths[c][n] for c, n in numbers], config.image_size, extractor.smallest)
        banks[name] = make_samples(
            detectors[0],
            images,
            [c for c, _ in numbers],
            anomaly,
            count,
            seed,
            folder=folder / name,
            identity={"run": settings, "files": [path.name for path in images.paths]},
            progress=part(*ends, f"{name} samples"),
        )
    progress(0.35, "choosing the smoothing")
    detector, sigma, base_ap = choose_base(detectors, banks["validation"])
    torch.manual_seed(config.fit.seed)
    model = CostFilter(detector, config.filter, [product.name for product in products], Mixture(sigma=sigma))
    parts = fit(
        model, banks["training"], banks["validation"], config.fit, folder / "checkpoints",
        identity={"run": settings}, progress=part(0.37, 1.0, "training"),
    )  # fmt: skip
    save_filter(model, folder / "model.safetensors")
    best = max(parts, key=lambda one: one.ap)
    report = {
        "model": str(folder / "model.safetensors"),
        "products": {
            product.name: {key: len(value) for key, value in vars(split).items()}
            for product, split in zip(products, splits, strict=True)
        },
        "chosen": asdict(model.mixture) | {"step": best.step},
        "validation": {"base_ap": base_ap, "ap": best.ap, "filter_ap": best.ap_filter},
        "parts": [asdict(one) for one in parts],
    }
    write_json(folder / "run.json", settings | report)
    return report


def _detectors(extractor: Lite0Features, splits: list[Split], config: RunConfig) -> list[Detector]:
    def images(paths: list[Path]) -> Tensor:
        files = ImageFiles(paths, config.image_size, extractor.smallest)
        return torch.stack([files[n] for n in range(len(files))])

    if config.detector == "templates":
        return [TemplateMatching.fit(extractor, [images(split.templates) for split in splits])]
    fitted = [images((split.templates + split.training)[:MOST_FITTED]) for split in splits]
    return list(FeatureReconstruction.fit_each(extractor, fitted, VARIANCES))


def _interleaved(counts: list[int]) -> list[tuple[int, int]]:
    """(product, image) pairs so that every product has as many turns, those with few images several."""
    most = max(counts)
    return [(c, n % count) for n in range(most) for c, count in enumerate(counts)]


def _check_sizes(paths: list[Path], smallest: int) -> None:
    for path in paths:
        try:
            with Image.open(path) as file:
                width, height = file.size
        except (OSError, SyntaxError, ValueError):
            raise InputError(f"{path}: no image that Pillow can read") from None
        if min(width, height) < smallest:
            raise InputError(
                f"{path} is {width} x {height} pixels; each side needs at least {smallest}, four strides "
                "of the backbone"
            )


def _settings(products: list[Product], textures: list[Path], config: RunConfig) -> dict[str, Any]:
    """What makes a run another one: settings, and names and contents of images and textures."""
    described = asdict(config)
    # A longer training goes on, on any device; everything else makes another run.
    for name in ("steps", "parts", "accelerator"):
        del described["fit"][name]
    del described["textures"]
    # One product may be moved; of several the names are those of the classes.
    names = [product.name if len(products) > 1 else "" for product in products]
    images = [(name, path) for name, p in zip(names, products, strict=True) for path in p.training()]
    return {
        "settings": json.loads(json.dumps(described)),
        "images": _content(images),
        "textures": _content([("", path) for path in textures]),
    }


def _content(files: list[tuple[str, Path]]) -> str:
    """A hash of names and contents."""
    digest = hashlib.sha256()
    for name, path in files:
        with path.open("rb") as file:
            digest.update(f"{name}/{path.name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}".encode())
    return digest.hexdigest()


def _claim(folder: Path, settings: dict[str, Any]) -> Path:
    """Make the run's folder, or check that it holds this very run."""
    file = folder / SETTINGS
    if file.is_file():
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise InputError(f"{file} is damaged; delete {folder} and train again") from None
        if stored != settings:
            before, now = _flat(stored.get("settings", {})), _flat(settings["settings"])
            changed = [name for name, value in now.items() if before.get(name) != value]
            changed += [
                f"the {name}" for name in ("images", "textures") if stored.get(name) != settings[name]
            ]
            raise InputError(
                f"{folder} holds a run with other settings ({', '.join(changed)}); name another folder"
            )
        return folder
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder} holds other files; name a folder that is empty or new")
    writable_folder(folder, "run folder")
    write_json(file, settings)
    return folder


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Nested settings by the innermost names, such as `lr`."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _flat(value) if isinstance(value, dict) else {name: value}
    return found
