"""Training: what it changes and leaves, what it chooses by, and that it goes on where it stopped."""

import json

import numpy as np
import pytest
import torch

from hexad.core.errors import InputError
from hexad.vision_robustness.costfilter_ad.filter import CostFilter, FilterConfig, Mixture, mix
from hexad.vision_robustness.costfilter_ad.fitting import FitConfig, Plateau, choose_base, fit
from hexad.vision_robustness.costfilter_ad.matched import MatchedSamples
from hexad.vision_robustness.costfilter_ad.metrics import average_precision
from hexad.vision_robustness.costfilter_ad.samples import SampleBank, make_samples
from hexad.vision_robustness.costfilter_ad.synthetic import SyntheticAnomaly

from .conftest import photographs

SMALL = FilterConfig(k=16, order="rank", size=16, width=8)
TEXTURE = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def banks(tiny):
    anomaly = SyntheticAnomaly([TEXTURE])
    images = list(photographs(6, seed=8))
    training = make_samples(tiny.templates, images[:4], [0] * 4, anomaly, 16, 1)
    return training, make_samples(tiny.templates, images[4:], [0] * 2, anomaly, 12, 2)


def model_of(detector):
    torch.manual_seed(0)
    return CostFilter(detector, SMALL, mixture=Mixture(sigma=0.0))


def test_samples_depend_on_seed_and_number_alone_and_are_kept(tiny, tmp_path):
    anomaly, images = SyntheticAnomaly([TEXTURE]), list(photographs(3, seed=8))
    made = make_samples(tiny.templates, images, [0, 1, 0], anomaly, 10, 1)
    fewer = make_samples(tiny.templates, images, [0, 1, 0], anomaly, 3, 1)
    assert np.array_equal(made.masks[:3], fewer.masks)
    assert np.array_equal(made.features[0][:3], fewer.features[0])
    assert made.classes.tolist() == [0, 1, 0] * 3 + [0]
    assert 0 < made.masks.any((1, 2)).sum() < 10
    kept = make_samples(
        tiny.templates, images, [0, 1, 0], anomaly, 10, 1, folder=tmp_path, identity={"of": "these"}
    )
    assert np.array_equal(kept.masks, made.masks)
    before = (tmp_path / "layer0.npy").stat().st_mtime_ns
    again = make_samples(
        tiny.templates, images, [0, 1, 0], anomaly, 10, 1, folder=tmp_path, identity={"of": "these"}
    )
    assert (tmp_path / "layer0.npy").stat().st_mtime_ns == before
    assert np.array_equal(again.features[1], made.features[1])
    other = make_samples(
        tiny.templates,
        images[::-1],
        [0, 1, 0],
        anomaly,
        10,
        1,
        folder=str(tmp_path),
        identity={"of": "those"},
    )
    assert not np.array_equal(other.features[0], made.features[0])
    with pytest.raises(InputError, match="say by `identity` what they depend on"):
        make_samples(tiny.templates, images, [0, 1, 0], anomaly, 10, 1, folder=tmp_path)
    (tmp_path / "samples.json").unlink()
    make_samples(tiny.templates, images, [0, 1, 0], anomaly, 10, 1, folder=tmp_path, identity={"of": "these"})
    assert (tmp_path / "layer0.npy").stat().st_mtime_ns > before
    with pytest.raises(InputError, match="there are 3 images and 2 classes"):
        make_samples(tiny.templates, images, [0, 1], anomaly, 3, 1)


def test_training_lowers_the_loss_chooses_by_validation_and_leaves_the_detector(tiny, banks, tmp_path):
    model = model_of(tiny.templates)
    before = {name: tensor.clone() for name, tensor in tiny.templates.state().items()}
    weights = tiny.extractor.first.clone()
    parts = fit(model, *banks, FitConfig(steps=30, parts=3, batch_size=4, lr=3e-3), tmp_path)
    assert [part.step for part in parts] == [10, 20, 30]
    assert parts[-1].loss < 0.8 * parts[0].loss
    assert all(torch.equal(tensor, before[name]) for name, tensor in tiny.templates.state().items())
    assert torch.equal(tiny.extractor.first, weights)
    assert not model.network.training
    best = max(parts, key=lambda part: part.ap)
    assert (model.mixture.lam, model.mixture.threshold) == (best.lam, best.threshold)
    # The kept weights are those of the best part, and the kept lam is no worse than either end.
    _, validation = banks
    features, classes = validation.batch(0, len(validation))
    maps = mix(model.filtered(features, classes), model.base(features, classes), best.lam)
    masks = validation.masks[:, ::2, ::2].astype(bool)
    assert average_precision(maps.numpy()[:, ::2, ::2], masks) == pytest.approx(best.ap, abs=1e-6)
    alone = average_precision(model.base(features, classes).numpy()[:, ::2, ::2], masks)
    assert best.ap >= max(alone, best.ap_filter) - 1e-9


@pytest.mark.parametrize("name", ["templates", "reconstruction"])
def test_kept_costs_are_those_of_the_network(tiny, banks, name):
    detector, (training, _) = getattr(tiny, name), banks
    model = model_of(detector)
    assert MatchedSamples.suits(model, training)
    assert not MatchedSamples.suits(CostFilter(detector, FilterConfig(size=16, width=8)), training)
    features, mask, number, costs, base = MatchedSamples(model, training)[5]
    matching = detector.match([layer[None] for layer in features], torch.tensor([number]))
    (expected,) = model.kept(matching)
    for found, grid in zip(costs, expected, strict=True):
        torch.testing.assert_close(found, grid[0], atol=1e-3, rtol=0)
    assert np.array_equal(mask.numpy(), training.masks[5])
    if matching.base is None:
        assert base.numel() == 0
    else:
        torch.testing.assert_close(base, matching.base[0], atol=1e-6, rtol=0)


def test_an_interrupted_training_ends_with_the_same_weights(tiny, banks, tmp_path):
    config = FitConfig(steps=12, parts=3, batch_size=4, round_steps=2, patience=0)
    whole = model_of(tiny.templates)
    fit(whole, *banks, config, tmp_path / "whole")

    class StopError(Exception):
        pass

    def stop(fraction, note):
        if fraction >= 10 / 12:
            raise StopError

    model = model_of(tiny.templates)
    with pytest.raises(StopError):
        fit(model, *banks, config, tmp_path / "halves", progress=stop)
    assert len(json.loads((tmp_path / "halves" / "parts.json").read_text())["parts"]) == 2
    resumed = model_of(tiny.templates)
    fit(resumed, *banks, config, tmp_path / "halves")
    for (name, first), second in zip(
        whole.network.state_dict().items(), resumed.network.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(first, second, msg=name)
    assert whole.mixture == resumed.mixture
    with pytest.raises(InputError, match=r"holds a training with other settings \(fit\)"):
        fit(model, *banks, FitConfig(steps=12, parts=3, batch_size=4, lr=0.1), tmp_path / "halves")


def test_the_learning_rate_is_halved_after_rounds_without_progress():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    plateau = Plateau(optimizer, patience=1, every=2)
    for loss in (4, 2, 3, 3, 3, 3, 3, 3, 1, 1):
        optimizer.step()
        plateau.observe(loss)
        plateau.step()
    # Round means 3, 3, 3, 3, 1: the third without a fall beyond the patience of one halves the rate.
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_the_base_is_chosen_by_validation(tiny, banks):
    _, validation = banks
    features, classes = validation.batch(0, len(validation))
    masks = validation.masks[:, ::2, ::2].astype(bool)
    found = {}
    for detector in (tiny.templates, tiny.reconstruction):
        for sigma in (0.0, 4.0):
            model = CostFilter(detector, SMALL, mixture=Mixture(sigma=sigma))
            maps = model.base(features, classes).numpy()[:, ::2, ::2]
            found[detector, sigma] = average_precision(maps, masks)
    detector, sigma, ap = choose_base([tiny.templates, tiny.reconstruction], validation, (0.0, 4.0))
    assert ap == pytest.approx(max(found.values()))
    assert found[detector, sigma] == pytest.approx(ap)


def test_validation_without_anomalies_and_nonsense_are_refused(tiny, banks, tmp_path):
    training, validation = banks
    empty = SampleBank(validation.features, np.zeros_like(validation.masks), validation.classes)
    with pytest.raises(InputError, match="hold no anomaly to choose by"):
        fit(model_of(tiny.templates), training, empty, FitConfig(), tmp_path)
    for options, words in (
        ({"steps": 0}, "steps is 0"),
        ({"batch_size": 1}, "batch_size is 1"),
        ({"lr": 0.0}, "lr is 0"),
        ({"steps": 2, "parts": 3}, "parts is 3, more than the 2 steps"),
    ):
        with pytest.raises(InputError, match=words):
            FitConfig(**options)
    assert not list(tmp_path.iterdir())


def test_other_samples_are_another_training(tiny, banks, tmp_path):
    config = FitConfig(steps=2, parts=1, batch_size=4)
    fit(model_of(tiny.templates), *banks, config, tmp_path)
    with pytest.raises(InputError, match=r"other settings \(training samples, validation samples\)"):
        fit(model_of(tiny.templates), *banks[::-1], config, tmp_path)


def test_a_network_that_left_the_numbers_is_said(tiny, banks, tmp_path):
    with pytest.raises(InputError, match=r"the loss is nan|not finite"):
        fit(model_of(tiny.templates), *banks, FitConfig(steps=30, parts=1, batch_size=4, lr=1e12), tmp_path)


def test_images_and_seeds_that_do_not_fit_are_refused(tiny):
    anomaly = SyntheticAnomaly([TEXTURE])
    for images, seed, words in (
        ([torch.zeros(3, 32, 64)], 0, r"image 0 is \(3, 32, 64\); the detector takes"),
        ([np.zeros((3, 64, 64))], 0, "image 0 is ndarray"),
        ([torch.zeros(3, 64, 64)], -1, "seed is -1"),
    ):
        with pytest.raises(InputError, match=words):
            make_samples(tiny.templates, images, [0], anomaly, 2, seed)
