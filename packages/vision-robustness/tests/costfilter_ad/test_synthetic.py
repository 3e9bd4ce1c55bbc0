"""Synthetic anomalies: what must stay, what must change, and Perlin noise itself."""

import numpy as np
import pytest
import torch

from hexad.core.errors import InputError
from hexad.vision_robustness.costfilter_ad.perlin import perlin_mask, perlin_noise
from hexad.vision_robustness.costfilter_ad.synthetic import SyntheticAnomaly, load_folder, shuffle_grid

from .conftest import photographs

TEXTURE = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)


def test_perlin_noise_is_zero_at_the_corners_of_its_cells_and_smooth():
    # With an even number of samples a cell none falls on a corner; the four around it average to about zero.
    noise = perlin_noise(256, 256, 4, 4, np.random.default_rng(0))
    assert abs(noise).max() <= 1.01
    assert noise.std() == pytest.approx(0.35, abs=0.1)
    for row in (64, 128, 192):
        for column in (64, 128, 192):
            assert abs(noise[row - 1 : row + 1, column - 1 : column + 1].mean()) < 0.01
    assert np.abs(np.diff(noise, axis=1)).max() < 0.1


def test_the_share_of_masks_is_between_a_twentieth_and_a_third():
    shares = [perlin_mask(96, 96, np.random.default_rng(seed)).mean() for seed in range(60)]
    assert 0.05 < np.mean(shares) < 0.33
    assert np.std(shares) > 0.02


def test_clean_images_are_the_given_ones_bit_for_bit_about_half_of_the_time():
    image, clean = photographs(1)[0], 0
    anomaly = SyntheticAnomaly([TEXTURE])
    for seed in range(100):
        made, mask = anomaly(image, np.random.default_rng(seed))
        if not mask.any():
            clean += 1
            assert torch.equal(made, image)
    assert 35 <= clean <= 70


@pytest.mark.parametrize("p_texture", [0.0, 1.0])
def test_pixels_outside_the_mask_are_untouched_and_inside_most_change(p_texture):
    image = photographs(1)[0]
    anomaly = SyntheticAnomaly([TEXTURE], probability=1, p_texture=p_texture)
    changed = []
    for seed in range(20):
        made, mask = anomaly(image, np.random.default_rng(seed))
        assert torch.equal(made[:, mask == 0], image[:, mask == 0])
        assert set(mask.unique().tolist()) <= {0.0, 1.0}
        assert made.min() >= 0
        assert made.max() <= 1
        if mask.any():
            changed.append(float((made != image).any(0)[mask == 1].float().mean()))
    assert len(changed) > 10
    assert np.mean(changed) > 0.9


def test_at_least_a_fifth_of_the_source_is_blended_in():
    # beta is at most 0.8, so with a white source every masked pixel of a black image becomes 0.2 or more.
    white = np.full((64, 64, 3), 255, np.uint8)
    anomaly = SyntheticAnomaly([white], probability=1, p_texture=1)
    values = []
    for seed in range(40):
        made, mask = anomaly(torch.zeros(3, 64, 64), np.random.default_rng(seed))
        if mask.any() and made.any():
            values.append(float(made[:, mask == 1].max()))
    assert min(values) > 0.05
    assert max(values) <= 1
    assert np.std(values) > 0.1


def test_the_same_seed_gives_the_same_anomaly():
    image = photographs(1)[0]
    anomaly = SyntheticAnomaly([TEXTURE], probability=1)
    first, again, other = (anomaly(image, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])


@pytest.mark.parametrize(("foreground", "inside"), [("bright", slice(16, 48)), ("dark", slice(0, 16))])
def test_a_foreground_keeps_anomalies_on_it(foreground, inside):
    image = torch.full((3, 64, 64), 0.1)
    image[:, 16:48] = 0.9
    anomaly = SyntheticAnomaly([TEXTURE], probability=1, foreground=foreground)
    total = sum(anomaly(image, np.random.default_rng(seed))[1] for seed in range(30))
    assert total[inside].sum() > 0
    assert total[16:48].sum() == 0 if foreground == "dark" else total[:16].sum() + total[48:].sum() == 0


def test_shuffling_moves_whole_cells():
    image = (
        torch.arange(64.0).reshape(1, 8, 8).repeat_interleave(5, 1).repeat_interleave(5, 2).expand(3, -1, -1)
    )
    shuffled = shuffle_grid(image, np.random.default_rng(0))
    assert not torch.equal(shuffled, image)
    cells = shuffled[0].unflatten(0, (8, 5)).unflatten(2, (8, 5))
    assert bool((cells == cells[:, :1, :, :1]).all())
    assert sorted(cells[:, 0, :, 0].flatten().tolist()) == list(range(64))


def test_textures_from_a_folder_and_the_lack_of_them(tmp_path):
    from PIL import Image

    with pytest.raises(InputError, match="no images in"):
        load_folder(tmp_path)
    Image.fromarray(TEXTURE).save(tmp_path / "a.png")
    made, mask = SyntheticAnomaly(load_folder(tmp_path), 1, 1)(photographs(1)[0], np.random.default_rng(1))
    assert mask.any()
    assert made.isfinite().all()
    with pytest.raises(InputError, match="there are no textures; give some, or set p_texture to 0"):
        SyntheticAnomaly()
    with pytest.raises(InputError, match=r"probability is 1\.5"):
        SyntheticAnomaly([TEXTURE], 1.5)
    with pytest.raises(InputError, match="unknown foreground"):
        SyntheticAnomaly([TEXTURE], foreground="left")
