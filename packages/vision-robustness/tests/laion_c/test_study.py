"""The study at its tiny preset, from the command line, and the corruptions it compares with."""

import sys

import numpy as np
import pytest
from scipy.ndimage import zoom
from skimage.color import hsv2rgb, rgb2hsv

from hexad.core.cli import main
from hexad.core.errors import InputError
from hexad.vision_robustness.images import rgb_array
from hexad.vision_robustness.laion_c.common_corruptions import COMMON, corrupt_commonly, plasma


@pytest.fixture(scope="module")
def proof(proof_of):
    return proof_of("laion-c")


def test_the_tiny_study_measures_both_arms_and_its_claims_hold(proof):
    page = proof[0]["pages"][0]
    assert not page["errors"]
    verdicts = {item["name"]: item["verdict"] for item in page["judgements"]}
    assert verdicts == {
        "clean": "holds", "strongest": "holds", "below-imagenet-c": "holds", "monotone": "not measured",
    }  # fmt: skip


def test_the_records_are_counts_of_seven_photographs(proof):
    import polars as pl

    records = pl.concat([pl.read_parquet(path) for path in proof[1].rglob("*.parquet")])
    accuracy = records.filter(metric="accuracy")
    assert len(accuracy) == 2 * (6 + 8)
    assert np.allclose(accuracy["value"] * 7, np.rint(accuracy["value"] * 7), atol=1e-9)
    for arm in ("laion-c", "imagenet-c"):
        chosen = records.filter(arm=arm)
        per_image = chosen.filter(metric="distorted")["value"].to_numpy()
        assert len(per_image) == 7
        cells = chosen.filter(metric="accuracy")["value"].to_numpy()
        assert per_image.mean() == pytest.approx(cells.mean())
    clean = records.filter(metric="clean")
    assert set(clean["value"]) <= {0.0, 1.0}
    assert clean.filter(arm="laion-c")["value"].to_list() == clean.filter(arm="imagenet-c")["value"].to_list()


def test_the_report_has_both_figures(proof):
    assert len(list(proof[1].rglob("*.png"))) >= 2


def test_the_full_study_without_the_stamps_says_how_to_get_them(monkeypatch, capfd, tmp_path):
    monkeypatch.setenv("HEXAD_TUXPAINT_STAMPS", str(tmp_path / "nowhere"))
    arguments = ["prove", "laion-c", "--preset", "full", "--seeds", "1", "--arms", "laion-c"]
    monkeypatch.setattr(sys, "argv", ["hexad", *arguments, "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "apt-get install tuxpaint-stamps-default" in "".join(capfd.readouterr()).replace("\n", " ")


# -- the corruptions of ImageNet-C ------------------------------------------------------------------------


def changed(photograph, name, severity, seed=0):
    return corrupt_commonly(photograph, name, severity, seed).astype(float)


@pytest.mark.parametrize("name", COMMON)
def test_a_corruption_repeats_with_its_seed_and_grows_with_severity(name, photograph):
    assert np.array_equal(changed(photograph, name, 3), changed(photograph, name, 3))
    size = [np.abs(changed(photograph, name, severity) - photograph).mean() for severity in range(1, 6)]
    assert size[0] > 2
    assert size == sorted(size)


def test_noise_has_the_published_strength():
    grey = np.full((224, 224, 3), 128, np.uint8)
    # 150 528 values: the standard error of a deviation of 0.08 is 0.00015; rounding down shifts the mean.
    assert changed(grey, "gaussian_noise", 1).std() / 255 == pytest.approx(0.08, abs=0.001)
    struck = changed(grey, "impulse_noise", 5)
    assert (struck != 128).mean() == pytest.approx(0.27, abs=0.005)
    assert (struck == 255).sum() / (struck == 0).sum() == pytest.approx(1, abs=0.05)


def test_contrast_and_brightness_equal_their_definitions(photograph):
    image = photograph / 255
    mean = image.mean((0, 1))
    assert (
        np.abs(changed(photograph, "contrast", 2) - np.floor(((image - mean) * 0.3 + mean) * 255)).max() <= 1
    )
    hsv = rgb2hsv(image)
    hsv[:, :, 2] = np.minimum(hsv[:, :, 2] + 0.3, 1)
    assert np.abs(changed(photograph, "brightness", 3) - np.floor(hsv2rgb(hsv) * 255)).max() <= 1


def test_zoom_blur_equals_the_mean_of_zoomed_copies(photograph):
    # Severity 5: ten zooms by 1 to 1.27 with scipy's linear interpolation, cut to the centre.
    image = photograph / 255
    total = image.copy()
    for factor in np.arange(1, 1.31, 0.03):
        cut = int(np.ceil(224 / factor))
        top = (224 - cut) // 2
        large = zoom(image[top : top + cut, top : top + cut], (factor, factor, 1), order=1)
        trim = (large.shape[0] - 224) // 2
        total += large[trim : trim + 224, trim : trim + 224]
    expected = np.floor(total / (len(np.arange(1, 1.31, 0.03)) + 1) * 255)
    assert np.abs(changed(photograph, "zoom_blur", 5) - expected).max() <= 1


def test_defocus_spreads_a_point_over_a_disc():
    point = np.zeros((65, 65, 3), np.uint8)
    point[32, 32] = 255
    spread = corrupt_commonly(np.maximum(point, 0), "defocus_blur", 1)
    # A disc of radius 3 has 29 cells, each with a 29th of 255.
    assert (spread[:, :, 0] > 0).sum() == 29
    assert spread.max() == 255 // 29
    rows, columns = np.nonzero(spread[:, :, 0])
    assert max(abs(rows - 32)) == max(abs(columns - 32)) == 3


def test_fog_keeps_the_brightest_value_at_most(photograph):
    foggy = changed(photograph, "fog", 5)
    assert foggy.max() <= photograph.max()
    assert foggy.std() < photograph.astype(float).std()
    field = plasma(64, 1.5, np.random.default_rng(0))
    assert field.shape == (64, 64)
    assert (field.min(), field.max()) == (0, 1)
    # Smooth: neighbours differ far less than two places at random.
    assert (
        np.abs(np.diff(field, axis=0)).mean()
        < 0.4 * np.abs(field - np.random.default_rng(1).permutation(field)).mean()
    )


def test_unknown_corruptions_and_severities_are_refused(photograph):
    with pytest.raises(InputError, match="unknown corruption 'frost'"):
        corrupt_commonly(rgb_array(photograph), "frost", 1)
    with pytest.raises(InputError, match="severity is 6"):
        corrupt_commonly(photograph, "fog", 6)
