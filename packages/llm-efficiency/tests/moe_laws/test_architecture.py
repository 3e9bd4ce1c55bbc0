"""Counts of appendix E."""

import pytest

from hexad.core.errors import InputError
from hexad.llm_efficiency.moe_laws import SwitchArch


@pytest.mark.parametrize(
    ("width", "experts", "active", "total"),
    [
        (1024, 32, 321_030_144, 5_001_873_408),
        (1152, 4, 426_334_464, 1_071_307_008),
        (1664, 1, 1_103_142_144, 1_103_142_144),
    ],
)
def test_counts_of_appendix_e(width, experts, active, total):
    arch = SwitchArch()
    assert arch.active(width, experts) == active
    assert arch.total(width, experts) == total


def test_cache_and_flops():
    arch = SwitchArch()
    # Keys and values: 2 of d numbers a token, in each of d/64 blocks.
    assert arch.cache(1024, 8, 16_384) == 2 * 16_384 * 16 * 1024
    assert arch.train_flops(1024, 8) == 6 * arch.active(1024)
    assert arch.inference_flops(1024, 8) == 2 * arch.active(1024)
    assert arch.active(1024) - arch.active_without_embedding(1024) == 2 * 1024 * 50_257


@pytest.mark.parametrize("given", [{"vocab": 0}, {"ffn_mult": 1.5}, {"aspect": -64}])
def test_shapes_that_cannot_be(given):
    with pytest.raises(InputError, match=next(iter(given))):
        SwitchArch(**given)
