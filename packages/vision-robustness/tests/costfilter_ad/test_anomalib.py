"""Anomalib's own PatchCore and Reverse Distillation under the filter."""

import pytest
import torch

from hexad.core.errors import InputError
from hexad.vision_robustness.costfilter_ad.filter import CostFilter, FilterConfig, Mixture
from hexad.vision_robustness.costfilter_ad.fitting import FitConfig, fit
from hexad.vision_robustness.costfilter_ad.samples import make_samples
from hexad.vision_robustness.costfilter_ad.synthetic import SyntheticAnomaly

from .conftest import photographs

pytest.importorskip("anomalib")
SMALL = FilterConfig(k=8, order="rank", size=16, width=8)
SHIFT, SCALE = (torch.tensor(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


@pytest.fixture(scope="module")
def patchcore():
    from anomalib.models.image.patchcore.torch_model import PatchcoreModel

    from hexad.vision_robustness.costfilter_ad.anomalib import PatchcoreDetector

    torch.manual_seed(0)
    model = PatchcoreModel(layers=["layer1", "layer2"], backbone="resnet18", pre_trained=False)
    with pytest.raises(InputError, match="memory bank is empty"):
        PatchcoreDetector(model, 64)
    return PatchcoreDetector.fit(model, photographs(3), coreset_ratio=0.2)


@pytest.fixture(scope="module")
def reverse_distillation():
    from anomalib.models.image.reverse_distillation.torch_model import ReverseDistillationModel

    from hexad.vision_robustness.costfilter_ad.anomalib import ReverseDistillationDetector

    torch.manual_seed(0)
    layers = ["layer1", "layer2", "layer3"]
    model = ReverseDistillationModel("resnet18", (64, 64), layers, anomaly_map_mode="add", pre_trained=False)
    return ReverseDistillationDetector(model, 64)


@pytest.mark.parametrize("name", ["patchcore", "reverse_distillation"])
def test_lam_0_gives_anomalibs_own_map(name, request):
    detector = request.getfixturevalue(name)
    images = photographs(2, seed=4)
    model = CostFilter(detector, SMALL, mixture=Mixture(lam=0))
    found = model.predict(images).anomaly_map
    expected = detector.model((images - SHIFT) / SCALE).anomaly_map
    torch.testing.assert_close(found, expected[:, 0], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(model.with_mixture(lam=1).predict(images).anomaly_map, found, atol=1e-2)


@pytest.mark.parametrize("name", ["patchcore", "reverse_distillation"])
def test_a_filter_is_trained_on_it_and_leaves_it_alone(name, request, tmp_path):
    detector = request.getfixturevalue(name)
    before = {key: tensor.clone() for key, tensor in detector.model.state_dict().items()}
    images, anomaly = list(photographs(3, seed=5)), SyntheticAnomaly(p_texture=0, probability=1)
    banks = [make_samples(detector, images, [0] * 3, anomaly, 6, seed) for seed in (1, 2)]
    torch.manual_seed(0)
    parts = fit(CostFilter(detector, SMALL), *banks, FitConfig(steps=4, parts=2, batch_size=2), tmp_path)
    assert [part.step for part in parts] == [2, 4]
    for key, tensor in detector.model.state_dict().items():
        assert torch.equal(tensor, before[key]), key
