"""Each term of the loss against a closed form or a library."""

import math

import numpy as np
import pytest
import torch
from skimage.metrics import structural_similarity
from torch.nn import functional

from hexad.core.errors import InputError
from hexad.vision_robustness.costfilter_ad.losses import (
    LossWeights,
    dynamic_gamma,
    filter_loss,
    focal_loss,
    soft_iou_loss,
    ssim_map,
)


@pytest.fixture
def guess():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 2, 24, 24, generator=generator, dtype=torch.float64)
    mask = (torch.rand(3, 24, 24, generator=generator) > 0.7).double()
    return logits, mask


def test_focal_with_gamma_0_is_the_cross_entropy(guess):
    logits, mask = guess
    # Label smoothing and the constant in the logarithm are of 1e-5.
    expected = functional.cross_entropy(logits, mask.long())
    assert float(focal_loss(logits.softmax(1), mask, 0.0)) == pytest.approx(float(expected), rel=2e-4)


def test_focal_equals_its_closed_form():
    # One pixel of each kind, both with 0.8 on the truth: 0.2^gamma * -log 0.8.
    probabilities = torch.tensor([[[[0.8, 0.2]], [[0.2, 0.8]]]], dtype=torch.float64)
    mask = torch.tensor([[[0.0, 1.0]]], dtype=torch.float64)
    for gamma in (1.5, 2.0, 3.5):
        expected = 0.2**gamma * -math.log(0.8)
        assert float(focal_loss(probabilities, mask, gamma)) == pytest.approx(expected, rel=2e-4)
    sure = torch.tensor([[[[1.0, 0.0]], [[0.0, 1.0]]]])
    assert float(focal_loss(sure, mask.float(), 1.5)) == pytest.approx(0, abs=1e-6)


def test_each_image_has_its_own_gamma(guess):
    logits, mask = guess
    gamma = torch.tensor([1.5, 2.0, 3.5], dtype=torch.float64)
    alone = [focal_loss(logits[i : i + 1].softmax(1), mask[i : i + 1], float(gamma[i])) for i in range(3)]
    assert float(focal_loss(logits.softmax(1), mask, gamma)) == pytest.approx(float(sum(alone)) / 3)


def test_gamma_falls_with_the_logit_and_is_high_where_the_class_is_mistaken():
    logits = torch.tensor([[0.5, 0.0], [1.0, 9.0], [2.0, 0.0]], requires_grad=True)
    gamma = dynamic_gamma(logits, torch.tensor([0, 1, 1]))
    assert gamma.tolist() == [2.5, 1.5, 3.5]
    assert not gamma.requires_grad
    assert dynamic_gamma(torch.zeros(1, 1), torch.tensor([0])).tolist() == [3.0]


def test_ssim_agrees_with_scikit_image_and_is_one_for_equal_images():
    generator = np.random.default_rng(0)
    first, second = generator.random((2, 40, 50))
    second = 0.5 * first + 0.5 * second
    tensors = [torch.from_numpy(x)[None, None] for x in (first, second)]
    _, expected = structural_similarity(
        first, second, data_range=1, gaussian_weights=True, sigma=1.5, use_sample_covariance=False, full=True
    )
    # Beyond the border there are zeros here and reflections there.
    found = ssim_map(*tensors)[0, 0].numpy()
    np.testing.assert_allclose(found[5:-5, 5:-5], expected[5:-5, 5:-5], atol=1e-10)
    torch.testing.assert_close(ssim_map(tensors[0], tensors[0]), torch.ones_like(tensors[0]))


def test_soft_iou_equals_its_closed_form():
    prediction = torch.tensor([[1.0, 1.0, 0.0, 0.5]])
    mask = torch.tensor([[1.0, 0.0, 0.0, 1.0]])
    # Intersection 1.5, union 2.5 + 2 - 1.5 = 3, both plus one.
    assert float(soft_iou_loss(prediction, mask)) == pytest.approx(1 - 2.5 / 4)
    assert float(soft_iou_loss(mask, mask)) == 0


def test_the_loss_is_the_weighted_sum_of_its_terms(guess):
    logits, mask = (tensor.float() for tensor in guess)
    named, classes = torch.tensor([[2.0, 0.0], [0.0, 0.3], [1.0, 0.0]]), torch.tensor([0, 1, 1])
    probabilities = logits.softmax(1)
    anomalous = probabilities[:, 1:]
    expected = (
        focal_loss(probabilities, mask, torch.tensor([1.5, 2.7, 3.5]))
        + 0.2 * (1 - ssim_map(anomalous, mask[:, None]).mean())
        + ((anomalous[:, 0] - mask) ** 2).mean()
        + 0.1 * soft_iou_loss(anomalous[:, 0], mask)
        + 0.5 * functional.cross_entropy(named, classes)
    )
    found = filter_loss(logits, named, mask, classes, LossWeights(ssim=0.2))
    torch.testing.assert_close(found, expected)
    for name in ("ssim", "iou", "classes"):
        without = filter_loss(logits, named, mask, classes, LossWeights(**{"ssim": 0.2} | {name: 0.0}))
        assert float(found - without) > 1e-3


def test_probabilities_are_scaled_to_the_mask_after_softmax(guess):
    logits, _ = guess
    mask = torch.zeros(3, 47, 47)
    scaled = functional.interpolate(logits.softmax(1), size=(47, 47), mode="bilinear", align_corners=True)
    expected = (
        focal_loss(scaled, mask.double(), 3.0)
        + 0.1 * (1 - ssim_map(scaled[:, 1:], mask.double()[:, None]).mean())
        + scaled[:, 1].square().mean()
        + 0.1 * soft_iou_loss(scaled[:, 1], mask)
    )
    found = filter_loss(logits, torch.zeros(3, 1), mask, torch.zeros(3, dtype=torch.long))
    assert float(found) == pytest.approx(float(expected))


@pytest.mark.parametrize(
    ("mask", "classes", "words"),
    [
        (torch.full((2, 16, 16), 0.5), [0, 1], "masks must be binary"),
        (torch.full((2, 16, 16), 255.0), [0, 1], "masks must be binary"),
        (torch.zeros(2, 1, 16, 16), [0, 1], r"they must be \(2, height, width\)"),
        (torch.zeros(3, 16, 16), [0, 1], r"they must be \(2, height, width\)"),
        (torch.zeros(2, 16, 16), [0, 2], "classes go from 0 to 2, but the network knows 0 to 1"),
        (torch.zeros(2, 16, 16), [-1, 0], "classes go from -1"),
        (torch.zeros(2, 16, 16), [0], "one for each of 2 images"),
    ],
)
def test_bad_targets_are_refused(mask, classes, words):
    with pytest.raises(InputError, match=words):
        filter_loss(torch.zeros(2, 2, 16, 16), torch.zeros(2, 2), mask, torch.tensor(classes))


def test_weights_below_zero_are_refused():
    with pytest.raises(InputError, match="weight iou is -1"):
        LossWeights(iou=-1)
