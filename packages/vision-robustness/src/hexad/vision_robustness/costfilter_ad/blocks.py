"""The parts that the filtering network is made of: convolution blocks, attention and guidance."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional


def conv_block(inputs: int, outputs: int, kernel: int = 3) -> nn.Sequential:
    """Convolution, batch norm and ReLU, in three dimensions; the size is kept."""
    return nn.Sequential(
        nn.Conv3d(inputs, outputs, kernel, padding=kernel // 2),
        nn.BatchNorm3d(outputs),
        nn.ReLU(inplace=True),
    )


def double_block(inputs: int, outputs: int, inner: int | None = None) -> nn.Sequential:
    """Two 3 x 3 x 3 convolution blocks; `inner` is the width between them, default `outputs`."""
    inner = outputs if inner is None else inner
    return nn.Sequential(conv_block(inputs, inner), conv_block(inner, outputs))


class ChannelAttention(nn.Module):
    """x + sigmoid(f(average) + f(maximum)) x, f a shared bottleneck over channels."""

    def __init__(self, channels: int, reduction: int) -> None:
        super().__init__()
        self.bottleneck = nn.Sequential(
            nn.Conv3d(channels, channels // reduction, 1, bias=False),
            nn.ReLU(inplace=True),
            nn.Conv3d(channels // reduction, channels, 1, bias=False),
        )

    def forward(self, x: Float[Tensor, "batch c d h w"]) -> Float[Tensor, "batch c d h w"]:
        """Weigh the channels."""
        pooled = self.bottleneck(functional.adaptive_avg_pool3d(x, 1)) + self.bottleneck(
            functional.adaptive_max_pool3d(x, 1)
        )
        return torch.sigmoid(pooled) * x + x


class SpatialAttention(nn.Module):
    """x + sigmoid(conv[mean, maximum over channels]) x."""

    def __init__(self, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(2, 1, kernel, padding=kernel // 2, bias=False)

    def forward(self, x: Float[Tensor, "batch c d h w"]) -> Float[Tensor, "batch c d h w"]:
        """Weigh the places."""
        pooled = torch.cat((x.mean(1, keepdim=True), x.amax(1, keepdim=True)), 1)
        return torch.sigmoid(self.conv(pooled)) * x + x


def attention(channels: int, reduction: int, kernel: int) -> nn.Sequential:
    """Channel attention, then spatial attention, both residual (CBAM)."""
    return nn.Sequential(ChannelAttention(channels, reduction), SpatialAttention(kernel))


class Spread(nn.Module):
    """A flat map made as deep and as large as a block's output, so that it can guide it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.before = conv_block(inputs, outputs, 1)
        self.after = conv_block(outputs, outputs)

    def forward(
        self, x: Float[Tensor, "batch inputs h0 w0"], shape: tuple[int, int, int]
    ) -> Float[Tensor, "batch outputs d h w"]:
        """Scale to `shape` (depth, height, width)."""
        x = self.before(x[:, :, None])
        return self.after(functional.interpolate(x, size=shape, mode="trilinear", align_corners=False))


class Guidance(nn.Module):
    """Fuses a block's output with the query's features and with the map of minimal costs."""

    def __init__(self, width: int, features: int, depth: int) -> None:
        super().__init__()
        self.features = Spread(features, width)
        self.maps = Spread(depth, width)
        self.attention = attention(3 * width, reduction=16, kernel=7)
        self.reduce = conv_block(3 * width, width, 1)

    def forward(
        self,
        block: Float[Tensor, "batch width d h w"],
        features: Float[Tensor, "batch channels h0 w0"],
        maps: Float[Tensor, "batch depth size size"],
    ) -> Float[Tensor, "batch width d h w"]:
        """The block's output, guided."""
        depth, height, width = block.shape[2:]
        shape = (depth, height, width)
        fused = torch.cat((block, self.features(features, shape), self.maps(maps, shape)), 1)
        return self.reduce(self.attention(fused))


class Rise(nn.Module):
    """Height and width doubled (trilinear, aligned corners), then a 3 x 3 x 3 convolution block."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.up = nn.Upsample(scale_factor=(1, 2, 2), mode="trilinear", align_corners=True)
        self.block = conv_block(inputs, outputs)

    def forward(self, x: Float[Tensor, "batch inputs d h w"]) -> Float[Tensor, "batch outputs d h2 w2"]:
        """Twice as high and wide."""
        return self.block(self.up(x))
