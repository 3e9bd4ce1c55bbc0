"""A detector with its filter: the detector's anomaly map, the filtered one, and their mixture.

map = lam P + (1 - lam) A0, P the network's probability of an anomaly and A0 the detector's own map. With
lam = 0 it is the detector alone, with lam = 1 the filter alone.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from hexad.core.errors import InputError
from hexad.core.validation import check_choice, check_count, check_flag, check_range
from hexad.vision_robustness.costfilter_ad.detectors import Detector, Grids, Matching
from hexad.vision_robustness.costfilter_ad.features import check_images
from hexad.vision_robustness.costfilter_ad.losses import to_image
from hexad.vision_robustness.costfilter_ad.matching import MAX_BYTES, ORDERS, Order, kept_costs, stack_costs
from hexad.vision_robustness.costfilter_ad.network import CostFilterNet, NetworkConfig


@dataclass(frozen=True)
class FilterConfig:
    """Shape of the cost volume and of the network; the defaults are the paper's.

    Args:
        k: costs kept a position; default all of one template.
        order: "position" filters each template on its own and averages the outputs, as the paper does; "rank"
            merges the patches of all templates and sorts their costs, for k far below their number.
        size: height and width of the volume, a multiple of 16.
        width: of the network.
        stem: see `NetworkConfig`.
        guidance: see `NetworkConfig`.
        max_bytes: what matching may allocate besides its result.
    """

    k: int | None = None
    order: Order = "position"
    size: int = 64
    width: int = 48
    stem: int = 4
    guidance: bool = True
    max_bytes: int = MAX_BYTES

    def __post_init__(self) -> None:
        if self.k is not None:
            check_count("k", self.k)
        check_choice("order", self.order, ORDERS)
        check_count("size", self.size, 16)
        if self.size % 16:
            raise InputError(
                f"size is {self.size}; it must be a multiple of 16, by which the network divides it"
            )
        if self.stem not in (4, 8):
            raise InputError(f"stem is {self.stem!r}; it must be 4 or 8")
        check_count("max_bytes", self.max_bytes)
        check_flag("guidance", self.guidance)


LIGHT = FilterConfig(k=64, order="rank", size=32, width=16)
"""A small filter that a CPU trains in minutes: the 64 smallest costs of all templates, width 16."""


@dataclass(frozen=True)
class Mixture:
    """How a filtered map is made of the two; all are chosen on synthetic validation images.

    Args:
        lam: weight of the filter.
        sigma: of the Gaussian that smooths the detector's own map, in pixels; 0 for none.
        threshold: of the map, above which a pixel counts as anomalous.
    """

    lam: float = 0.5
    sigma: float = 0.0
    threshold: float = 0.5

    def __post_init__(self) -> None:
        check_range("lam", self.lam, 0, 1)
        check_range("sigma", self.sigma, 0)
        check_range("threshold", self.threshold)


@dataclass(frozen=True)
class InferenceBatch:
    """What is predicted of a batch, under the names that anomalib uses.

    Attributes:
        pred_score: mean of the largest hundredth of each map, at least 250 pixels.
        anomaly_map: at the size of the images; larger is more anomalous.
        base_map: the detector's own map, smoothed.
    """

    pred_score: Float[Tensor, " batch"]
    anomaly_map: Float[Tensor, "batch height width"]
    base_map: Float[Tensor, "batch height width"]


class CostFilter:
    """A detector and the network that filters its matching costs.

    Args:
        detector: nothing in it is trained, and its parameters stay as they are; give it in evaluation mode.
        config: of volume and network.
        classes: names of the product classes.
        mixture: of the two maps.
    """

    def __init__(
        self,
        detector: Detector,
        config: FilterConfig = FilterConfig(),
        classes: Sequence[str] = ("product",),
        mixture: Mixture = Mixture(),
    ) -> None:
        if not classes or len(set(classes)) < len(classes):
            raise InputError(f"classes are {list(classes)}; give one name or more, each once")
        self.detector, self.config, self.classes, self.mixture = detector, config, tuple(classes), mixture
        side = detector.image_size
        with torch.no_grad():
            blank = detector.features(torch.zeros(1, 3, side, side))
            templates = detector.match(blank, torch.zeros(1, dtype=torch.long)).templates
        if wrong := [tuple(layer.shape) for layer in templates if layer.ndim not in (2, 5)]:
            raise InputError(
                f"templates of the detector are {wrong[0]}; they must be (batch or 1, templates, channels, "
                "height, width), or a bank of patches (m, channels)"
            )
        positions = [
            layer.shape[0] if layer.ndim == 2 else layer.shape[3] * layer.shape[4] * (
                layer.shape[1] if config.order == "rank" else 1
            )
            for layer in templates
        ]  # fmt: skip
        k = min(positions) if config.k is None else config.k
        if k > min(positions):
            raise InputError(f"k is {k}, but there are only {min(positions)} template positions; lower k")
        self.network = CostFilterNet(
            NetworkConfig(
                match_dim=k,
                feature_dims=tuple(detector.feature_dims),
                n_classes=len(classes),
                width=config.width,
                stem=8 if config.stem == 8 else 4,  # so that its type is known
                guidance=config.guidance,
            )
        ).eval()

    def kept(self, matching: Matching) -> Iterator[list[Tensor]]:
        """The kept costs of each run of the network: of all templates at once, or of one after the other."""
        runs = [matching.templates]
        if self.config.order == "position":
            runs = [
                [layer[:, n : n + 1] if layer.ndim == 5 else layer for layer in matching.templates]
                for n in range(max(1, min(layer.shape[1] for layer in matching.templates)))
            ]
        k = self.network.config.match_dim
        for templates in runs:
            yield kept_costs(matching.queries, templates, k, self.config.order, self.config.max_bytes)

    def inputs(self, kept: list[Tensor], base: Tensor | None) -> tuple[Tensor, Tensor]:
        """The cost volume, and the maps that guide: minima a layer, or the detector's own in each channel."""
        found, size = stack_costs(kept, self.config.order, self.config.size), self.config.size
        if base is None:
            return found.volume, found.minima
        return found.volume, to_image(base[:, None], (size, size)).expand_as(found.minima)

    @torch.no_grad()
    def filtered(self, features: Grids, classes: Int[Tensor, " batch"]) -> Float[Tensor, "batch side side"]:
        """The network's probability of an anomaly at each pixel, the mean over templates."""
        self.network.eval()
        side, matching = self.detector.image_size, self.detector.match(features, classes)
        total, runs = torch.zeros(()), 0
        for kept in self.kept(matching):
            volume, maps = self.inputs(kept, matching.base)
            logits, _ = self.network(volume, matching.queries, maps)
            total = total + to_image(logits.softmax(1)[:, 1:], (side, side))[:, 0]
            runs += 1
        return total / runs

    @torch.no_grad()
    def base(self, features: Grids, classes: Int[Tensor, " batch"]) -> Float[Tensor, "batch side side"]:
        """The detector's own map at the size of the image, smoothed."""
        return base_map(self.detector, features, classes, self.mixture.sigma, self.config.max_bytes)

    def predict(
        self, images: Float[Tensor, "batch 3 side side"], classes: Int[Tensor, " batch"] | None = None
    ) -> InferenceBatch:
        """Maps and scores of images of the detector's size, in [0, 1].

        Args:
            images: to be judged.
            classes: numbers of their product classes; default the first.

        Raises:
            InputError: images of another size or range, an unknown class, or maps that are not finite.
        """
        check_images(images)
        images = images.float()
        side = self.detector.image_size
        if images.shape[2:] != (side, side):
            raise InputError(
                f"images are {images.shape[3]} x {images.shape[2]} pixels; resize them to {side} x {side}, "
                "which the detector takes"
            )
        if classes is None:
            classes = torch.zeros(len(images), dtype=torch.long)
        if not isinstance(classes, Tensor) or classes.is_floating_point():
            raise InputError("classes must be a tensor of whole numbers, one an image")
        if classes.shape != images.shape[:1]:
            raise InputError(f"there are {len(classes)} classes for {len(images)} images")
        if bool(((classes < 0) | (classes >= len(self.classes))).any()):
            raise InputError(
                f"a class id lies outside 0 to {len(self.classes) - 1}, the classes of this filter"
            )
        with torch.no_grad():
            features = self.detector.features(images)
        base = self.base(features, classes)
        lam = self.mixture.lam
        mixed = base if lam == 0 else mix(self.filtered(features, classes), base, lam)
        if not bool(mixed.isfinite().all()):
            raise InputError(
                f"maps of the detector {self.detector.name!r} or of its filter are not finite; check their "
                "weights"
            )
        return InferenceBatch(image_score(mixed), mixed, base)

    def with_mixture(
        self, *, lam: float | None = None, sigma: float | None = None, threshold: float | None = None
    ) -> "CostFilter":
        """Change lam, sigma or threshold in place, None leaves one, and return the filter."""
        changes = {"lam": lam, "sigma": sigma, "threshold": threshold}
        given = {name: value for name, value in changes.items() if value is not None}
        self.mixture = replace(self.mixture, **given)
        return self


@torch.no_grad()
def base_map(
    detector: Detector,
    features: Grids,
    classes: Int[Tensor, " batch"],
    sigma: float = 0.0,
    max_bytes: int = MAX_BYTES,
) -> Float[Tensor, "batch side side"]:
    """The detector's own anomaly map at the size of the image, smoothed by a Gaussian."""
    matching = detector.match(features, classes)
    side = detector.image_size
    if matching.base is None:
        nearest = kept_costs(matching.queries, matching.templates, 1, "rank", max_bytes)
        layers = [to_image(grid, (side, side)) for grid in nearest]
        maps = torch.stack(layers).mean(0)
    else:
        if matching.base.ndim != 3:
            raise InputError(
                f"the detector's own map is {tuple(matching.base.shape)}; it must be (batch, height, width)"
            )
        maps = to_image(matching.base[:, None], (side, side))
    return smooth(maps[:, 0], sigma)


def smooth(maps: Float[Tensor, "batch height width"], sigma: float) -> Float[Tensor, "batch height width"]:
    """Gaussian smoothing, cut at four sigma, as the authors' kernel of 49 for sigma 6 is."""
    if sigma == 0:
        return maps
    reach = min(math.ceil(4 * sigma), min(maps.shape[1:]) - 1)
    offsets = torch.arange(-reach, reach + 1, dtype=maps.dtype, device=maps.device)
    line = torch.exp(-(offsets**2) / (2 * sigma**2))
    line = line / line.sum()
    padded = functional.pad(maps[:, None], (reach,) * 4, mode="reflect")
    rows = functional.conv2d(padded, line[None, None, :, None])
    return functional.conv2d(rows, line[None, None, None, :])[:, 0]


def mix(filtered: Any, base: Any, lam: float) -> Any:
    """lam P + (1 - lam) A0, of tensors or arrays; exactly A0 for lam = 0 and exactly P for lam = 1."""
    check_range("lam", lam, 0, 1)
    if lam in (0, 1):
        return filtered if lam else base
    return lam * filtered + (1 - lam) * base


def image_score(maps: Float[Tensor, "batch height width"]) -> Float[Tensor, " batch"]:
    """The mean of the largest hundredth of the pixels, at least 250 of them (all, where there are fewer)."""
    flat = maps.flatten(1)
    count = min(max(250, flat.shape[1] // 100), flat.shape[1])
    return flat.topk(count, dim=1).values.mean(1)
