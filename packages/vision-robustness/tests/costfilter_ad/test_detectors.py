"""Detectors and the filter around them: what lam, blur, templates and classes do."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

from hexad.core.errors import InputError
from hexad.vision_robustness.costfilter_ad.detectors import (
    FeatureReconstruction,
    Matching,
    TemplateMatching,
)
from hexad.vision_robustness.costfilter_ad.features import Lite0Features
from hexad.vision_robustness.costfilter_ad.filter import (
    LIGHT,
    CostFilter,
    FilterConfig,
    Mixture,
    image_score,
    mix,
    smooth,
)
from hexad.vision_robustness.costfilter_ad.samples import make_samples
from hexad.vision_robustness.costfilter_ad.saving import load_filter, save_filter
from hexad.vision_robustness.costfilter_ad.synthetic import SyntheticAnomaly

from .conftest import photographs

SMALL = FilterConfig(k=16, order="rank", size=16, width=8)
WHOLE = FilterConfig(size=16, width=8)


def filtered(detector, config=SMALL, **options):
    torch.manual_seed(0)
    return CostFilter(detector, config, **options)


def test_templates_map_is_the_nearest_neighbours_cosine_distance(tiny):
    images = photographs(2, seed=1)
    model = filtered(tiny.templates, mixture=Mixture(lam=0))
    base = model.predict(images).base_map
    expected = np.zeros((2, 64))
    queries, normal = tiny.extractor(images), tiny.extractor(tiny.normal)
    for query, template in zip(queries, normal, strict=True):
        bank = template.movedim(1, -1).reshape(-1, template.shape[1]).numpy()
        search = NearestNeighbors(n_neighbors=1, metric="cosine").fit(bank)
        rows = query.movedim(1, -1).reshape(-1, query.shape[1]).numpy()
        expected += search.kneighbors(rows)[0].reshape(2, 64) / 2
    grid = torch.from_numpy(expected).float().reshape(2, 1, 8, 8)
    scaled = torch.nn.functional.interpolate(grid, size=(64, 64), mode="bilinear", align_corners=True)
    torch.testing.assert_close(base, scaled[:, 0], atol=2e-6, rtol=0)


def test_lam_0_is_the_detector_exactly_and_lam_1_the_filter_alone(tiny):
    images, classes = photographs(2, seed=1), torch.zeros(2, dtype=torch.long)
    for detector in (tiny.templates, tiny.reconstruction):
        model = filtered(detector)
        features = detector.features(images)
        alone, network = model.base(features, classes), model.filtered(features, classes)
        assert torch.equal(model.with_mixture(lam=0).predict(images).anomaly_map, alone)
        assert torch.equal(model.with_mixture(lam=1).predict(images).anomaly_map, network)
        half = model.with_mixture(lam=0.25).predict(images).anomaly_map
        torch.testing.assert_close(half, 0.25 * network + 0.75 * alone)
        assert not torch.allclose(alone, network, atol=0.01)
    with pytest.raises(InputError, match=r"lam is 1\.1"):
        Mixture(lam=1.1)
    with pytest.raises(InputError, match="lam is -0"):
        mix(alone, alone, -0.1)


def test_smoothing_is_scipys_gaussian():
    maps = torch.rand(2, 40, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = gaussian_filter(maps.numpy(), (0, 2, 2), mode="mirror", truncate=4)
    np.testing.assert_allclose(smooth(maps, 2.0).numpy(), expected, atol=1e-12)
    assert torch.equal(smooth(maps, 0), maps)


def test_scores_are_the_mean_of_the_largest_hundredth_but_at_least_250_pixels():
    generator = torch.Generator().manual_seed(0)
    for side, count in ((64, 250), (224, 501), (10, 100)):
        maps = torch.rand(2, side, side, generator=generator)
        expected = maps.flatten(1).sort(1, descending=True).values[:, :count].mean(1)
        torch.testing.assert_close(image_score(maps), expected)


def test_position_order_averages_the_outputs_over_templates(tiny):
    images, classes = photographs(1, seed=2), torch.zeros(1, dtype=torch.long)
    model = filtered(tiny.templates, WHOLE)
    assert model.network.config.match_dim == 64
    each = []
    for number in range(3):
        single = [[layer[number : number + 1] for layer in tiny.templates.templates[0]]]
        other = CostFilter(TemplateMatching(tiny.extractor, 64, single), WHOLE)
        other.network.load_state_dict(model.network.state_dict())
        each.append(other.filtered(other.detector.features(images), classes))
    found = model.filtered(model.detector.features(images), classes)
    torch.testing.assert_close(found, torch.stack(each).mean(0))
    assert not torch.allclose(each[0], each[1])


def test_the_reconstruction_is_scikit_learns_pca(tiny):
    features = tiny.extractor(tiny.normal)
    for index, layer in enumerate(features):
        rows = layer.movedim(1, -1).reshape(-1, layer.shape[1]).double().numpy()
        reference = PCA(n_components=0.9, svd_solver="full").fit(rows)
        assert len(tiny.reconstruction.components[index]) == reference.n_components_
        query = tiny.extractor(photographs(1, seed=3))[index]
        patches = query[0].movedim(0, -1).reshape(-1, len(query[0]))
        back = reference.inverse_transform(reference.transform(patches))
        matching = tiny.reconstruction.match(tiny.extractor(photographs(1, seed=3)), torch.zeros(1))
        found = matching.templates[index][0, 0].flatten(1).T
        np.testing.assert_allclose(found.numpy(), back, atol=1e-4)


def test_a_reconstructions_map_is_one_minus_cosine_at_the_same_position_in_every_channel(tiny):
    matching = tiny.reconstruction.match(tiny.extractor(photographs(2, seed=1)), torch.zeros(2))
    costs = [
        1 - torch.cosine_similarity(query, template[:, 0], dim=1)
        for query, template in zip(matching.queries, matching.templates, strict=True)
    ]
    torch.testing.assert_close(matching.base, torch.stack(costs).mean(0), atol=1e-6, rtol=0)
    model = filtered(tiny.reconstruction)
    _, maps = model.inputs(next(model.kept(matching)), matching.base)
    assert torch.equal(maps[:, 0], maps[:, 1])
    model = filtered(tiny.templates)
    matching = tiny.templates.match(matching.queries, torch.zeros(2, dtype=torch.long))
    _, maps = model.inputs(next(model.kept(matching)), matching.base)
    assert not torch.equal(maps[:, 0], maps[:, 1])


def test_classes_have_their_own_templates(tiny):
    first, second = photographs(2, seed=1), photographs(2, seed=2)
    detector = TemplateMatching.fit(tiny.extractor, [first, second])
    model = filtered(detector, classes=("a", "b"), mixture=Mixture(lam=0))
    images = torch.cat((first[:1], second[:1]))
    own = model.predict(images, torch.tensor([0, 1])).base_map
    assert float(own.max()) < 1e-5
    other = model.predict(images, torch.tensor([1, 0])).base_map
    assert float(other.mean()) > 1e-3
    one = model.predict(images[1:], torch.tensor([0])).base_map
    torch.testing.assert_close(one, other[1:], atol=1e-6, rtol=1e-4)
    assert model.network.config.n_classes == 2
    for classes in ([2, 0], [-1, 0]):
        with pytest.raises(InputError, match="a class id lies outside 0 to 1"):
            model.predict(images, torch.tensor(classes))


def test_any_object_with_features_and_match_is_a_detector(tiny):
    class Mine:
        name = "mine"
        image_size = 64
        feature_dims = (6,)

        def features(self, images):
            return tiny.extractor(images)[:1]

        def match(self, features, classes):
            bank = tiny.extractor(tiny.normal)[0].movedim(1, -1).reshape(-1, 6)
            return Matching(features, [bank], features[0].mean(1))

    images = photographs(2, seed=1)
    found = filtered(Mine(), mixture=Mixture(lam=0)).predict(images)
    expected = torch.nn.functional.interpolate(
        tiny.extractor(images)[0].mean(1, keepdim=True), (64, 64), mode="bilinear", align_corners=True
    )
    torch.testing.assert_close(found.anomaly_map, expected[:, 0])
    with pytest.raises(InputError, match="class Mine cannot be saved"):
        save_filter(filtered(Mine()), "nowhere.safetensors")


def test_bad_images_and_settings_are_refused(tiny):
    model = filtered(tiny.templates)
    with pytest.raises(InputError, match="resize them to 64 x 64"):
        model.predict(photographs(1, side=128))
    with pytest.raises(InputError, match=r"images must be floats in \[0, 1\]"):
        model.predict(photographs(1) * 255)
    with pytest.raises(InputError, match=r"they must be \(batch, 3, height, width\)"):
        model.predict(photographs(1)[:, :1])
    with pytest.raises(InputError, match="k is 500, but there are only 192 template positions"):
        filtered(tiny.templates, FilterConfig(k=500, order="rank", size=16, width=8))
    with pytest.raises(InputError, match="multiple of 16"):
        FilterConfig(size=20)
    with pytest.raises(InputError, match="give one name or more, each once"):
        filtered(tiny.templates, classes=("a", "a"))
    for images in ([], [torch.zeros(0, 3, 64, 64)]):
        with pytest.raises(InputError, match="there are no templates"):
            TemplateMatching.fit(tiny.extractor, images)
    with pytest.raises(InputError, match="variance is 0"):
        FeatureReconstruction.fit(tiny.extractor, [tiny.normal], 0.0)


class Own:
    """A detector of a user's own, whose features take part in a gradient."""

    name = "own"
    image_size = 64
    feature_dims = (6,)

    def __init__(self, tiny, templates=None, base=None):
        self.weight = tiny.extractor.first.clone().requires_grad_()
        self.normal, self.templates, self.base = tiny.normal, templates, base

    def features(self, images):
        return [torch.nn.functional.conv2d(images, self.weight, stride=8)]

    def match(self, features, classes):
        bank = self.features(self.normal)[0]
        templates = bank[None] if self.templates is None else self.templates(bank)
        return Matching(features, [templates], None if self.base is None else self.base(features[0]))


def test_features_with_a_gradient_are_taken_without_it(tiny):
    model = filtered(Own(tiny))
    found = model.predict(photographs(2, seed=1))
    assert not found.anomaly_map.requires_grad
    bank = make_samples(model.detector, list(photographs(2)), [0, 0], SyntheticAnomaly(p_texture=0), 4, 0)
    assert len(bank) == 4


def test_shapes_and_values_of_an_own_detector_are_checked(tiny):
    with pytest.raises(InputError, match=r"templates of the detector are \(3, 6, 8, 8\); they must be"):
        filtered(Own(tiny, templates=lambda bank: bank))
    images = photographs(2, seed=1)
    model = filtered(Own(tiny, base=lambda grid: grid[:, :1]))
    with pytest.raises(InputError, match=r"own map is \(2, 1, 8, 8\); it must be \(batch, height, width\)"):
        model.predict(images)
    model = filtered(Own(tiny, base=lambda grid: grid[:, 0] * float("nan")), mixture=Mixture(lam=0))
    with pytest.raises(InputError, match="maps of the detector 'own' or of its filter are not finite"):
        model.predict(images)


def test_other_floats_serve_and_other_things_are_refused(tiny):
    model, images = filtered(tiny.templates), photographs(2, seed=1)
    expected = model.predict(images).anomaly_map
    assert torch.equal(model.predict(images.double()).anomaly_map, expected)
    for wrong, words in (
        (images[:0], "there are no images"),
        (images.numpy(), "images are a ndarray"),
    ):
        with pytest.raises(InputError, match=words):
            model.predict(wrong)
    with pytest.raises(InputError, match="classes must be a tensor of whole numbers"):
        model.predict(images, [0, 0])
    with pytest.raises(InputError, match="stem is 5; it must be 4 or 8"):
        FilterConfig(stem=5)
    for texture in ("a.png", np.zeros((8, 8), np.uint8)):
        with pytest.raises(InputError, match="a texture is"):
            SyntheticAnomaly([texture])


# -- the packaged features ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lite0():
    return Lite0Features()


def test_packaged_features_are_frozen_stages_of_the_pretrained_network(lite0):
    from hexad.vision_robustness.efficientnet import load_efficientnet_lite0

    images = photographs(1, side=96)
    seen = []
    network = load_efficientnet_lite0()
    for stage in (2, 4):
        network.blocks[stage].register_forward_hook(lambda m, i, o: seen.append(o))
    with torch.no_grad():
        network(2 * images - 1)
    first, second = lite0(images)
    assert first.shape == (1, 40, 12, 12)
    assert second.shape == (1, 112, 12, 12)
    # Away from the border the mean over 3 x 3 places is a plain one.
    torch.testing.assert_close(first[0, :, 5, 5], seen[0][0, :, 4:7, 4:7].mean((1, 2)), atol=1e-4, rtol=1e-4)
    assert not any(parameter.requires_grad for parameter in lite0.parameters())
    assert not lite0.train().training


def test_images_below_four_strides_are_refused(lite0):
    with pytest.raises(InputError, match="each side needs at least 64, four strides of the backbone"):
        lite0(photographs(1, side=56))
    with pytest.raises(InputError, match=r"layers are \(4, 2\)"):
        Lite0Features((4, 2))


def test_a_saved_filter_gives_the_same_maps(lite0, tmp_path):
    images = photographs(2, side=64, seed=5)
    for detector in (TemplateMatching.fit(lite0, [images]), FeatureReconstruction.fit(lite0, [images])):
        model = filtered(detector, classes=("tile",), mixture=Mixture(0.3, 2.0, 0.4))
        save_filter(model, tmp_path / "model.safetensors")
        again = load_filter(tmp_path / "model.safetensors")
        assert (again.mixture, again.classes, again.config) == (model.mixture, model.classes, model.config)
        seen = photographs(1, side=64, seed=6)
        assert torch.equal(again.predict(seen).anomaly_map, model.predict(seen).anomaly_map)
    (tmp_path / "bad.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    with pytest.raises(InputError, match="is no filter that costfilter-ad train wrote"):
        load_filter(tmp_path / "bad.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["LIGHT", "FilterConfig()"])
def test_an_image_of_512_with_three_templates_needs_less_than_2_gib(shape):
    code = f"""
import resource, torch
from hexad.vision_robustness.costfilter_ad import *
torch.set_num_threads(1)
images = torch.rand(3, 3, 512, 512)
model = CostFilter(TemplateMatching.fit(Lite0Features(), [images]), {shape})
found = model.predict(torch.rand(1, 3, 512, 512))
assert found.anomaly_map.shape == (1, 512, 512)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 2
    assert LIGHT.order == "rank"
