"""Detectors of anomalib behind the interface of `Detector`: PatchCore and Reverse Distillation.

Both take anomalib's torch models as they are, trained or to be fitted, and give their own anomaly maps as the
base. anomalib comes with the extra `hexad-vision-robustness[anomalib]`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from hexad.core.errors import InputError, MissingExtraError
from hexad.core.validation import check_count, check_range
from hexad.vision_robustness.costfilter_ad.detectors import Grids, Matching

try:
    from anomalib.models.image.patchcore.torch_model import PatchcoreModel
    from anomalib.models.image.reverse_distillation.torch_model import ReverseDistillationModel
except ImportError:
    raise MissingExtraError(
        'anomalib is not installed; run: pip install "hexad-vision-robustness[anomalib]"'
    ) from None

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class PatchcoreDetector:
    """anomalib's PatchCore: patches against its memory bank, all product classes in one.

    Each layer's part of the bank is matched with that layer's features; the base is anomalib's own map, of
    Euclidean distances of whole embeddings. The bank has no positions, so filters take `order="rank"`.

    Args:
        model: with a memory bank, from `fit` or from anomalib's own training.
        image_size: of the images, in pixels.
        mean, std: by which images in [0, 1] are normalised before the model; anomalib's default.

    Raises:
        InputError: the memory bank is empty.
    """

    name = "patchcore"

    def __init__(
        self,
        model: PatchcoreModel,
        image_size: int,
        mean: Sequence[float] = MEAN,
        std: Sequence[float] = STD,
    ) -> None:
        if model.memory_bank.numel() == 0:
            raise InputError("PatchCore's memory bank is empty; fit it on normal images first")
        check_count("image_size", image_size, 32)
        self.model, self.image_size = model.eval().requires_grad_(False), image_size
        self.mean, self.std = (torch.tensor(values)[:, None, None] for values in (mean, std))
        self.feature_dims = tuple(model.feature_extractor.out_dims)

    @classmethod
    def fit(
        cls,
        model: PatchcoreModel,
        images: Float[Tensor, "n 3 size size"],
        coreset_ratio: float = 0.1,
        mean: Sequence[float] = MEAN,
        std: Sequence[float] = STD,
        batch: int = 8,
    ) -> "PatchcoreDetector":
        """Fill the memory bank from normal images, subsampled as anomalib does."""
        check_range("coreset_ratio", coreset_ratio, 0, 1, low_open=True)
        if len(images) == 0:
            raise InputError("there are no templates; give at least one normal image")
        shift, scale = (torch.tensor(values)[:, None, None] for values in (mean, std))
        model.train()
        for first in range(0, len(images), batch):
            model((images[first : first + batch] - shift) / scale)
        model.subsample_embedding(coreset_ratio)
        return cls(model, images.shape[-1], mean, std)

    @torch.no_grad()
    def features(self, images: Float[Tensor, "batch 3 size size"]) -> Grids:
        """The pooled features of each layer, all on the first one's grid, as PatchCore joins them."""
        found = self.model.feature_extractor((images - self.mean) / self.std)
        pooled = [self.model.feature_pooler(found[layer]) for layer in self.model.layers]
        grid = pooled[0].shape[2:]
        return [pooled[0], *(functional.interpolate(layer, grid, mode="bilinear") for layer in pooled[1:])]

    @torch.no_grad()
    def match(self, features: Grids, classes: Int[Tensor, " batch"]) -> Matching:
        """The layers against their parts of the memory bank."""
        embedding = self.model.reshape_embedding(torch.cat(features, 1))
        distances, _ = self.model.nearest_neighbors(embedding, n_neighbors=1)
        batch, _, height, width = features[0].shape
        grid = distances.reshape(batch, 1, height, width)
        base = self.model.anomaly_map_generator(grid, (self.image_size, self.image_size))
        banks = self.model.memory_bank.split(list(self.feature_dims), dim=1)
        return Matching(features, list(banks), base[:, 0])


class ReverseDistillationDetector:
    """anomalib's Reverse Distillation: the encoder's features against what the decoder makes of them.

    Args:
        model: trained by anomalib; its layers have grids of their own, so filters take `order="rank"`.
        image_size: of the images, in pixels.
        mean, std: by which images in [0, 1] are normalised before the model; anomalib's default.
    """

    name = "reverse-distillation"

    def __init__(
        self,
        model: ReverseDistillationModel,
        image_size: int,
        mean: Sequence[float] = MEAN,
        std: Sequence[float] = STD,
    ) -> None:
        check_count("image_size", image_size, 32)
        self.model: Any = model.eval().requires_grad_(False)
        self.image_size = image_size
        self.mean, self.std = (torch.tensor(values)[:, None, None] for values in (mean, std))
        self.feature_dims = tuple(model.encoder.out_dims)

    @torch.no_grad()
    def features(self, images: Float[Tensor, "batch 3 size size"]) -> Grids:
        """The encoder's features."""
        return list(self.model.encoder((images - self.mean) / self.std).values())

    @torch.no_grad()
    def match(self, features: Grids, classes: Int[Tensor, " batch"]) -> Matching:
        """The encoder's features against the decoder's of the same image."""
        rebuilt = self.model.decoder(self.model.bottleneck(features))
        base = self.model.anomaly_map_generator(features, rebuilt)
        return Matching(features, [layer[:, None] for layer in rebuilt], base[:, 0])
