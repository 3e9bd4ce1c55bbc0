"""The distortions inside a torchvision v2 pipeline."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

from hexad.core.errors import InputError
from hexad.vision_robustness.laion_c import LaionC, corrupt


def test_in_a_compose_it_distorts_and_labels_pass(photograph):
    pipeline = v2.Compose([LaionC("vertical_lines", 2), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    image, target = pipeline(Image.fromarray(photograph), 7)
    assert target == 7
    expected = torch.from_numpy(corrupt(photograph, "vertical_lines", 2)).permute(2, 0, 1) / 255
    torch.testing.assert_close(image, tv_tensors.Image(expected), rtol=0, atol=1e-6)


def test_tensors_keep_kind_dtype_and_place(photograph):
    chw = torch.from_numpy(photograph.copy()).permute(2, 0, 1)
    expected = torch.from_numpy(corrupt(photograph, "glitched", 4)).permute(2, 0, 1)
    transform = LaionC("glitched", 4)
    assert torch.equal(transform(chw), expected)
    assert isinstance(transform(tv_tensors.Image(chw)), tv_tensors.Image)
    floating = transform(chw.float() / 255)
    assert floating.dtype == torch.float32
    assert torch.equal((floating * 255).round().byte(), expected)
    assert transform(chw[:1]).shape == (3, 224, 224), "greyscale in, three channels out"


def test_the_seed_of_torch_repeats_it_and_each_image_has_its_own_draw(photograph):
    transform = LaionC("geometric_shapes", 2)
    batch = torch.from_numpy(photograph.copy()).permute(2, 0, 1).expand(3, -1, -1, -1)
    torch.manual_seed(4)
    first = transform(batch)
    torch.manual_seed(4)
    assert torch.equal(first, transform(batch))
    assert not torch.equal(first, transform(batch))
    assert not torch.equal(first[0], first[1])


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_of_a_data_loader_draw_differently(photograph):
    data = _Photographs(Image.fromarray(photograph))
    loader = torch.utils.data.DataLoader(data, batch_size=1, num_workers=2, multiprocessing_context="fork")
    images = [batch[0].numpy() for batch in loader]
    assert len({image.tobytes() for image in images}) == len(images) == 4


class _Photographs(torch.utils.data.Dataset):
    def __init__(self, image: Image.Image) -> None:
        self.image = image
        self.transform = v2.Compose([LaionC("luminance_checkerboard", 3), v2.ToImage()])

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(self.image)


def test_masks_pass_through(photograph):
    mask = tv_tensors.Mask(torch.ones(224, 224))
    _, out = LaionC("glitched", 1)(Image.fromarray(photograph), mask)
    assert out is mask


def test_bad_arguments_are_refused_when_it_is_made(photograph):
    with pytest.raises(InputError, match="unknown distortion"):
        LaionC("fog", 1)
    with pytest.raises(InputError, match="severity"):
        LaionC("mosaic", 6)
    with pytest.raises(InputError, match="TileBank"):
        LaionC("mosaic", 3)
    with pytest.raises(InputError, match="call `corrupt`"):
        LaionC("glitched", 3)(np.asarray(photograph))
    with pytest.raises(InputError, match="an image tensor must be"):
        LaionC("glitched", 3)(torch.zeros(224, 224, 3, dtype=torch.uint8))
