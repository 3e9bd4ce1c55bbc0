from types import SimpleNamespace

import pytest
import torch

from hexad.vision_robustness.costfilter_ad.detectors import FeatureReconstruction, TemplateMatching


class TinyFeatures(torch.nn.Module):
    """Frozen random convolutions that stand in for a backbone where only the plumbing is tested."""

    layers = (2, 4)

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.register_buffer("first", torch.randn(6, 3, 8, 8, generator=generator) / 10)
        self.register_buffer("second", torch.randn(10, 3, 8, 8, generator=generator) / 10)

    @torch.no_grad()
    def forward(self, images):
        return [torch.nn.functional.conv2d(images, weight, stride=8) for weight in (self.first, self.second)]


def photographs(count, side=64, seed=0):
    """Smooth random images in [0, 1], (count, 3, side, side)."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, side // 8, side // 8, generator=generator)
    return torch.nn.functional.interpolate(coarse, size=(side, side), mode="bilinear").clamp(0, 1)


@pytest.fixture(scope="session")
def tiny():
    """An extractor and both detectors, on images of 64 pixels (a grid of 8 x 8)."""
    extractor = TinyFeatures()
    normal = photographs(3)
    return SimpleNamespace(
        extractor=extractor,
        normal=normal,
        templates=TemplateMatching.fit(extractor, [normal]),
        reconstruction=FeatureReconstruction.fit(extractor, [normal]),
    )
