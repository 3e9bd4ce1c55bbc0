"""Metrics: cases worked by hand, and anomalib's own per-region overlap."""

import numpy as np
import pytest

from hexad.core.errors import InputError
from hexad.vision_robustness.costfilter_ad.metrics import best_f1, measure, region_overlap


def test_perfect_maps_have_ones_and_reversed_ones_do_not():
    masks = np.zeros((3, 8, 8), bool)
    masks[1, 2:4, 2:4] = masks[2, 5:, 5:] = True
    maps = masks + 0.01 * np.arange(64).reshape(8, 8) / 64
    found = measure(maps, masks, maps.max((1, 2)))
    for value in (found.pixel_auroc, found.pixel_ap, found.pixel_f1, found.image_auroc):
        assert value == pytest.approx(1)
    assert found.pro == pytest.approx(1, abs=0.01)
    wrong = measure(1 - maps, masks, -maps.max((1, 2)))
    assert wrong.pixel_auroc == 0
    assert wrong.pro == pytest.approx(0, abs=0.01)


def test_f1_and_its_threshold_by_hand():
    # Above 0.8: one right of two found, of two: 1/2; above 0.5: two of three found, F1 0.8.
    f1, threshold = best_f1(np.array([0.9, 0.8, 0.5, 0.1]), np.array([False, True, True, False]))
    assert f1 == pytest.approx(0.8)
    assert threshold == 0.5


def test_a_small_region_weighs_as_much_as_a_large_one():
    masks = np.zeros((1, 20, 20), bool)
    masks[0, :10, :10] = masks[0, 19, 19] = True
    large, small = np.zeros((2, 1, 20, 20))
    large[0, :10, :10] = small[0, 19, 19] = 1
    # One of the two regions found, no false alarm: overlap 0.5 from there on, growing to 1 at a rate of 1.
    expected = 0.5 + 0.5 * 0.3 / 2
    assert region_overlap(large, masks) == pytest.approx(expected)
    assert region_overlap(small, masks) == pytest.approx(expected)


def test_regions_touch_at_corners():
    masks = np.zeros((1, 4, 4), bool)
    masks[0, 0, 0] = masks[0, 1, 1] = masks[0, 3, 3] = True
    maps = np.zeros((1, 4, 4))
    maps[0, 0, 0] = 1
    # (0, 0) and (1, 1) are one region, half found; (3, 3) the other: 0.25 at no false alarm.
    assert region_overlap(maps, masks) == pytest.approx(0.25 + 0.75 * 0.3 / 2)


def test_region_overlap_is_anomalibs():
    pytest.importorskip("anomalib")
    import torch
    from anomalib.metrics.aupro import _AUPRO

    generator = np.random.default_rng(0)
    masks = np.zeros((4, 40, 40), bool)
    for mask in masks:
        for _ in range(2):
            y, x = generator.integers(0, 30, 2)
            mask[y : y + generator.integers(2, 9), x : x + generator.integers(2, 9)] = True
    maps = generator.random((4, 40, 40)) + 0.6 * masks
    reference = _AUPRO(fpr_limit=0.3)
    reference.update(torch.from_numpy(maps), torch.from_numpy(masks.astype(int)))
    assert region_overlap(maps, masks) == pytest.approx(float(reference.compute()), abs=5e-3)


def test_metrics_that_need_both_kinds_are_left_out_without_them():
    maps, none = np.random.default_rng(0).random((2, 8, 8)), np.zeros((2, 8, 8), bool)
    found = measure(maps, none, maps.max((1, 2)))
    assert found.image_auroc is found.pixel_auroc is found.pixel_ap is found.pro is None
    every = none.copy()
    every[:, 0, 0] = True
    assert measure(maps, every, maps.max((1, 2))).image_auroc is None


def test_what_is_anomalous_can_be_said():
    maps, masks = np.random.default_rng(0).random((3, 8, 8)), np.zeros((3, 8, 8), bool)
    masks[2, 0, 0] = True
    scores = np.array([0.1, 0.8, 0.9])
    assert measure(maps, masks, scores, np.array([False, True, True])).image_auroc == 1
    assert measure(maps, masks, np.array([0.5, 0.1, 0.9]), np.array([False, True, True])).image_auroc == 0.5


def test_arrays_that_do_not_fit_are_refused():
    maps = np.zeros((2, 8, 8))
    with pytest.raises(InputError, match="give one for each image"):
        measure(maps, np.zeros((2, 8, 9), bool), np.zeros(2))
    with pytest.raises(InputError, match="not finite"):
        measure(maps * np.nan, np.zeros((2, 8, 8), bool), np.zeros(2))
    with pytest.raises(InputError, match="masks are uint8; they must be boolean"):
        measure(maps, np.zeros((2, 8, 8), np.uint8), np.zeros(2))
