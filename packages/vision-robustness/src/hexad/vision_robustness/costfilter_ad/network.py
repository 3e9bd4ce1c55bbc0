"""The filtering network: a 3-D U-Net over the cost volume, guided by the query's features.

Widths and the places of guidance are those of the authors' networks for Dinomaly and GLAD, which differ only
in the width of the stem and the number of layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from hexad.core.errors import InputError
from hexad.core.validation import check_count, check_flag
from hexad.vision_robustness.costfilter_ad.blocks import (
    ChannelAttention,
    Guidance,
    Rise,
    attention,
    conv_block,
    double_block,
)

GUIDED = (1, 3, 4, 6)
"""Blocks of the encoder that are guided."""


@dataclass(frozen=True)
class NetworkConfig:
    """Shape of the network.

    Args:
        match_dim: costs that are kept a position, k.
        feature_dims: channels of the query's features, one a layer; their number is the volume's depth.
        n_classes: product classes that the adaptor tells apart.
        width: of the first block; 48 in the paper's code. A multiple of 8.
        stem: width of the first convolution, in units of `width`: 4 (Dinomaly, HVQ-Trans) or 8 (GLAD).
        guidance: False leaves out the guiding branches (an ablation).
    """

    match_dim: int
    feature_dims: tuple[int, ...]
    n_classes: int = 1
    width: int = 48
    stem: Literal[4, 8] = 4
    guidance: bool = True

    def __post_init__(self) -> None:
        for name in ("match_dim", "n_classes"):
            check_count(name, getattr(self, name))
        check_count("width", self.width, 8)
        if self.width % 8:
            raise InputError(f"width is {self.width}; it must be a multiple of 8, which attention divides by")
        if self.stem not in (4, 8):
            raise InputError(f"stem is {self.stem!r}; it must be 4 or 8")
        check_flag("guidance", self.guidance)
        if not self.feature_dims:
            raise InputError("feature_dims is empty; a volume has at least one layer")
        for channels in self.feature_dims:
            check_count("feature_dims", channels)

    @property
    def depth(self) -> int:
        """Layers of the volume."""
        return len(self.feature_dims)

    def guide_of(self, place: int) -> int:
        """The layer that guides the place-th of `GUIDED`: of two layers 0, 0, 1, 1, of four each its own."""
        return place * self.depth // len(GUIDED)


class CostFilterNet(nn.Module):
    """Filters a cost volume into an anomaly map, and names the product class.

    Args:
        config: its shape.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        w = config.width
        self.stem = nn.Sequential(
            conv_block(config.match_dim, config.stem * w, 1), conv_block(config.stem * w, 2 * w, 1)
        )
        widths = (2 * w, w, 2 * w, 2 * w, 4 * w, 6 * w, 8 * w)
        self.encoder = nn.ModuleList(double_block(widths[i], widths[i + 1]) for i in range(6))
        guides = (
            Guidance(widths[number], config.feature_dims[config.guide_of(place)], config.depth)
            for place, number in enumerate(GUIDED)
        )
        self.guides = nn.ModuleList(guides if config.guidance else ())
        self.bottom = double_block(14 * w, 8 * w)
        self.rises = nn.ModuleList((Rise(8 * w, 4 * w), Rise(4 * w, 2 * w), Rise(2 * w, w), Rise(w, w)))
        self.decoder = nn.ModuleList(
            (
                nn.Sequential(double_block(8 * w, 4 * w), attention(4 * w, 8, 3)),
                double_block(4 * w, 2 * w),
                nn.Sequential(double_block(3 * w, w), attention(w, 8, 3)),
                nn.Sequential(double_block(2 * w, w, inner=2 * w), attention(w, 8, 3)),
            )
        )
        self.collapse = nn.Conv3d(w, w, (config.depth, 1, 1))
        self.head_attention = ChannelAttention(w, 4)
        self.head = nn.Conv2d(1, 2, 1)
        self.class_attention = ChannelAttention(3 * w, 16)
        self.class_conv = nn.Conv3d(3 * w, w, 3, padding=1)
        self.class_head = nn.Linear(w, config.n_classes)
        self.apply(_initialise)

    def forward(
        self,
        volume: Float[Tensor, "batch k depth size size"],
        features: Sequence[Float[Tensor, "batch channels height width"]],
        maps: Float[Tensor, "batch depth size size"],
    ) -> tuple[Float[Tensor, "batch 2 size size"], Float[Tensor, "batch classes"]]:
        """Logits of normal and anomalous at each place, and of the product classes.

        Args:
            volume: the matching costs; `size` a multiple of 16.
            features: the query's feature grids, one a layer.
            maps: the minimal costs a layer, or the detector's own map in each channel.

        Raises:
            InputError: a shape that is not the configured one.
        """
        self._check(volume, features, maps)
        x = self.stem(volume)
        blocks: list[Tensor] = []
        for number, block in enumerate(self.encoder, start=1):
            x = block(x)
            if self.config.guidance and number in GUIDED:
                place = GUIDED.index(number)
                x = self.guides[place](x, features[self.config.guide_of(place)], maps)
            blocks.append(x)
            if number <= 4:
                x = functional.max_pool3d(x, (1, 2, 2))
        x = self.bottom(torch.cat((blocks[5], blocks[4]), 1))
        joined = x
        for rise, block, skip in zip(self.rises, self.decoder, reversed(blocks[:4]), strict=True):
            joined = torch.cat((rise(x), skip), 1)
            x = block(joined)
        least = self.head_attention(self.collapse(x)).amin(1)
        described = self.class_conv(self.class_attention(torch.cat((joined, x), 1)))
        classes = self.class_head(functional.relu(described).mean((2, 3, 4)))
        return self.head(least), classes

    def _check(self, volume: Tensor, features: Sequence[Tensor], maps: Tensor) -> None:
        config = self.config
        size = volume.shape[-1]
        if volume.ndim != 5 or volume.shape[1:3] != (config.match_dim, config.depth):
            raise InputError(
                f"the volume is {tuple(volume.shape)}; it must be (batch, {config.match_dim}, "
                f"{config.depth}, size, size)"
            )
        if volume.shape[3] != size or size % 16 or size == 0:
            raise InputError(
                f"the volume is {volume.shape[3]} x {size}; both sides must be one multiple of 16, by which "
                "the network divides them"
            )
        if maps.shape != (volume.shape[0], config.depth, size, size):
            raise InputError(
                f"the maps are {tuple(maps.shape)}; they must be "
                f"{(volume.shape[0], config.depth, size, size)}, as the volume is"
            )
        found = tuple(layer.shape[1] for layer in features)
        if found != config.feature_dims:
            raise InputError(f"the features have {found} channels; the network takes {config.feature_dims}")


def _initialise(module: nn.Module) -> None:
    """Kaiming's normal weights by fan-out, no biases, as the authors' code has it."""
    if isinstance(module, (nn.Conv2d, nn.Conv3d)):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
