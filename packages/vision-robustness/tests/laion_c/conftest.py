import numpy as np
import pytest

from hexad.core.data import load_photograph
from hexad.vision_robustness.laion_c.images import benchmark_frame
from hexad.vision_robustness.laion_c.tiles import TileBank


@pytest.fixture(scope="session")
def photograph() -> np.ndarray:
    """A real photograph in the benchmark's frame, (224, 224, 3)."""
    return benchmark_frame(load_photograph("china"))


@pytest.fixture(scope="session")
def bank() -> TileBank:
    """Three hundred crops of two real photographs."""
    return TileBank.from_crops([load_photograph("china"), load_photograph("flower")], 300)


@pytest.fixture(scope="session")
def palette_bank() -> TileBank:
    """Tiles of one colour each: 200 random colours."""
    colours = np.random.default_rng(5).integers(0, 256, (200, 1, 1, 3), dtype=np.uint8)
    return TileBank({size: np.tile(colours, (1, size, size, 1)) for size in (4, 6, 8, 16, 28)})
