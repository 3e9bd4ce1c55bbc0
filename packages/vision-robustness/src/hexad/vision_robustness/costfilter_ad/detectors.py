"""Detectors that can be filtered: what a detector must offer, and two that need no download.

A detector says of a batch of images which features are matched with which templates. `TemplateMatching`
compares with patches of normal images, `FeatureReconstruction` with the image's own features as far as normal
ones explain them. Any object with the attributes and methods of `Detector` serves as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hexad.core.errors import InputError
from hexad.core.validation import check_count, check_range
from hexad.vision_robustness.costfilter_ad.features import Lite0Features

Grids = list[Float[Tensor, "batch channels height width"]]


@dataclass(frozen=True)
class Matching:
    """What is matched with what, for a batch of images.

    Attributes:
        queries: feature grids of the images, one a layer.
        templates: for each layer `(batch or 1, templates, channels, height, width)`, or a bank of patches
            `(m, channels)`.
        base: the detector's own anomaly map; None means the smallest cost of each position, averaged over
            layers.
    """

    queries: Grids
    templates: list[Tensor]
    base: Float[Tensor, "batch height width"] | None = None


class Detector(Protocol):
    """What `CostFilter` needs of a detector.

    Attributes:
        name: stands in reports and saved models.
        image_size: images come as (batch, 3, image_size, image_size), in [0, 1].
        feature_dims: channels of the matched features, one a layer.
    """

    name: str
    image_size: int
    feature_dims: tuple[int, ...]

    def features(self, images: Float[Tensor, "batch 3 size size"]) -> Grids:
        """What is slow and depends on the image alone; it is computed once and kept."""
        ...

    def match(self, features: Grids, classes: Int[Tensor, " batch"]) -> Matching:
        """What is matched with what, from `features`; `classes` are numbers of product classes."""
        ...


class TemplateMatching:
    """An embedding-based detector: patches are compared with those of a few normal images.

    As AnomalyDINO and, with all images as templates, PatchCore without its subsampling. Its own map is the
    smallest cosine cost, the mean over layers.

    Args:
        extractor: gives the features.
        image_size: of the images, in pixels.
        templates: for each class the features of its templates, one a layer, (templates, channels, h, w).
    """

    name = "templates"

    def __init__(self, extractor: Lite0Features, image_size: int, templates: Sequence[Grids]) -> None:
        if not templates or any(not len(layers) or not len(layers[0]) for layers in templates):
            raise InputError("there are no templates; give at least one normal image of each class")
        self.extractor, self.image_size = extractor, image_size
        self.templates = [list(layers) for layers in templates]
        self.feature_dims = tuple(layer.shape[1] for layer in templates[0])

    @classmethod
    def fit(
        cls, extractor: Lite0Features, images: Sequence[Float[Tensor, "n 3 size size"]]
    ) -> "TemplateMatching":
        """Keep the features of template images; `images` holds those of each class."""
        _check_fit(images)
        return cls(extractor, images[0].shape[-1], [_in_parts(extractor, batch) for batch in images])

    def features(self, images: Float[Tensor, "batch 3 size size"]) -> Grids:
        """Feature grids of the images."""
        return self.extractor(images)

    def match(self, features: Grids, classes: Int[Tensor, " batch"]) -> Matching:
        """The images' patches against those of their classes' templates."""
        _check_classes(classes, len(self.templates), features)
        device, number = features[0].device, int(classes[0])
        if bool((classes == number).all()):
            return Matching(features, [layer[None].to(device) for layer in self.templates[number]])
        if len({len(layers[0]) for layers in self.templates}) > 1:
            raise InputError(
                "classes with unlike numbers of templates cannot share a batch; give as many to each"
            )
        chosen = zip(*(self.templates[int(number)] for number in classes), strict=True)
        return Matching(features, [torch.stack(layer).to(device) for layer in chosen])

    def state(self) -> dict[str, Tensor]:
        """Tensors to be saved."""
        return {
            f"templates.{number}.{layer}": grid
            for number, layers in enumerate(self.templates)
            for layer, grid in enumerate(layers)
        }

    @classmethod
    def from_state(
        cls, extractor: Lite0Features, image_size: int, state: Mapping[str, Tensor]
    ) -> "TemplateMatching":
        """The detector of `state`."""
        numbers = 1 + max(int(name.split(".")[1]) for name in state)
        layers = 1 + max(int(name.split(".")[2]) for name in state)
        templates = [[state[f"templates.{n}.{i}"] for i in range(layers)] for n in range(numbers)]
        return cls(extractor, image_size, templates)


class FeatureReconstruction:
    """A reconstruction-based detector: features against their projection on what normal ones span.

    A principal component analysis for each layer, over all classes at once; its own map is 1 - cos at the
    same position, the mean over layers. It is the linear autoencoder of anomalib's FRE, solved exactly.

    Args:
        extractor: gives the features.
        image_size: of the images, in pixels.
        means: of the normal features, one a layer, (channels,).
        components: orthonormal rows, one array a layer, (components, channels).
    """

    name = "reconstruction"

    def __init__(
        self, extractor: Lite0Features, image_size: int, means: Sequence[Tensor], components: Sequence[Tensor]
    ) -> None:
        self.extractor, self.image_size = extractor, image_size
        self.means, self.components = list(means), list(components)
        self.feature_dims = tuple(len(mean) for mean in self.means)

    @classmethod
    def fit(
        cls,
        extractor: Lite0Features,
        images: Sequence[Float[Tensor, "n 3 size size"]],
        variance: float = 0.9,
    ) -> "FeatureReconstruction":
        """Find the components that hold this share of the variance of normal features."""
        return cls.fit_each(extractor, images, (variance,))[0]

    @classmethod
    def fit_each(
        cls,
        extractor: Lite0Features,
        images: Sequence[Float[Tensor, "n 3 size size"]],
        variances: Sequence[float],
    ) -> "list[FeatureReconstruction]":
        """`fit` for several shares, the features computed once."""
        _check_fit(images)
        for variance in variances:
            check_range("variance", variance, 0, 1, low_open=True)
        batches = [_in_parts(extractor, batch) for batch in images]
        means: list[Tensor] = []
        components: list[list[Tensor]] = [[] for _ in variances]
        for layer in zip(*batches, strict=True):
            rows = torch.cat([grid.permute(0, 2, 3, 1).flatten(0, 2) for grid in layer]).double()
            mean = rows.mean(0)
            values, vectors = torch.linalg.eigh((rows - mean).T @ (rows - mean))
            share = values.flip(0).cumsum(0) / values.sum().clamp_min(1e-12)
            means.append(mean.float())
            for variance, kept in zip(variances, components, strict=True):
                count = min(int((share < variance - 1e-9).sum()) + 1, len(mean))
                kept.append(vectors.flip(1)[:, :count].T.float().contiguous())
        return [cls(extractor, images[0].shape[-1], means, kept) for kept in components]

    def features(self, images: Float[Tensor, "batch 3 size size"]) -> Grids:
        """Feature grids of the images."""
        return self.extractor(images)

    def match(self, features: Grids, classes: Int[Tensor, " batch"]) -> Matching:
        """The images' patches against their own reconstructions."""
        rebuilt, costs = [], []
        for grid, mean, components in zip(features, self.means, self.components, strict=True):
            mean, components = mean.to(grid.device), components.to(grid.device)
            rows = grid.movedim(1, -1)
            back = (rows - mean) @ components.T @ components + mean
            costs.append(1 - torch.cosine_similarity(rows, back, dim=-1))
            rebuilt.append(back.movedim(-1, 1)[:, None])
        return Matching(features, rebuilt, torch.stack(costs).mean(0))

    def state(self) -> dict[str, Tensor]:
        """Tensors to be saved."""
        named = (("mean", self.means), ("components", self.components))
        return {f"{name}.{layer}": value for name, values in named for layer, value in enumerate(values)}

    @classmethod
    def from_state(
        cls, extractor: Lite0Features, image_size: int, state: Mapping[str, Tensor]
    ) -> "FeatureReconstruction":
        """The detector of `state`."""
        layers = range(len(state) // 2)
        return cls(
            extractor,
            image_size,
            [state[f"mean.{layer}"] for layer in layers],
            [state[f"components.{layer}"] for layer in layers],
        )


DETECTORS: dict[str, Any] = {cls.name: cls for cls in (TemplateMatching, FeatureReconstruction)}


def _in_parts(extractor: Lite0Features, images: Tensor, batch: int = 16) -> Grids:
    parts = [extractor(images[first : first + batch]) for first in range(0, len(images), batch)]
    return [torch.cat(layer) for layer in zip(*parts, strict=True)]


def _check_fit(images: Sequence[Tensor]) -> None:
    if not images or any(len(batch) == 0 for batch in images):
        raise InputError("there are no templates; give at least one normal image of each class")
    if len({batch.shape[1:] for batch in images}) > 1 or images[0].shape[2] != images[0].shape[3]:
        raise InputError("normal images must be square and of one size; resize them first")


def _check_classes(classes: Tensor, known: int, features: Grids) -> None:
    check_count("classes", known)
    if len(classes) != len(features[0]):
        raise InputError(f"there are {len(classes)} classes for {len(features[0])} images")
    if bool(((classes < 0) | (classes >= known)).any()):
        raise InputError(
            f"classes go from {int(classes.min())} to {int(classes.max())}; there are 0 to {known - 1}"
        )
