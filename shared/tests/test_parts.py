"""Data, timing, plots and the numbers of the reports."""

import time

import numpy as np
import pytest

from hexad.core.data import debian_folder, distribution_file, load_photograph
from hexad.core.environment import environment
from hexad.core.errors import HexadError, InputError, MissingExtraError
from hexad.core.methods import domain_of
from hexad.core.plots import new_figure, save_figure
from hexad.core.reports import estimate_text, format_number
from hexad.core.timing import Timing, interleave


def test_photographs_are_the_known_ones():
    china = load_photograph("china")
    assert china.shape == (427, 640, 3)
    assert china.dtype == np.uint8
    assert tuple(china[0, 0]) == (174, 201, 231)
    assert load_photograph("flower").mean() == pytest.approx(62.0, abs=5)
    with pytest.raises(InputError, match="did you mean 'china'"):
        load_photograph("chnia")


def test_a_missing_or_changed_data_package_is_named():
    with pytest.raises(MissingExtraError, match="run: pip install no-such-package"):
        distribution_file("no-such-package", "a")
    with pytest.raises(HexadError, match=r"scikit-learn .* holds no sklearn/nothing"):
        distribution_file("scikit-learn", "sklearn/nothing")
    with pytest.raises(HexadError, match="sha256"):
        distribution_file("scikit-learn", "sklearn/datasets/images/china.jpg", sha256="0" * 64)
    with pytest.raises(InputError, match="run: apt-get install tuxpaint-stamps-default"):
        debian_folder("/no/such/folder", "tuxpaint-stamps-default")


def test_interleaved_timing_finds_the_ratio():
    timing = interleave(
        {"slow": lambda: time.sleep(0.06), "fast": lambda: time.sleep(0.02)}, rounds=3, warmup=1
    )
    assert len(timing.seconds["slow"]) == 3
    # Sleeping oversleeps by up to some milliseconds on a busy machine.
    assert timing.speedup("fast", "slow") == pytest.approx(3.0, rel=0.35)
    # The ratio is taken within rounds: one slow round does not spoil it.
    assert Timing({"a": [1, 10, 1], "b": [2, 20, 2]}).speedup("a", "b") == 2


def test_numbers_read_well():
    texts = [format_number(x) for x in (0, 0.12345, 12345.6, 1.0, 1e-9, 1.5e12, None, -0.0123)]
    assert texts == ["0", "0.123", "12,346", "1.00", "1.00e-09", "1.50e+12", "–", "-0.0123"]
    judgement = {
        "estimate": {"value": 0.9312, "low": 0.91, "high": 0.95, "n": 3},
        "digits": 3,
        "unit": "dB",
        "reason": "",
    }
    assert estimate_text(judgement) == "0.931 [0.910, 0.950] dB (n = 3)"


def test_figures_are_saved_without_global_state(tmp_path):
    import matplotlib.pyplot as plt

    figure, axes = new_figure(4, 3, rows=1, columns=2)
    axes[0].plot([1, 2])
    save_figure(figure, tmp_path / "a.png")
    save_figure(figure, tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    assert plt.get_fignums() == []


def test_the_environment_is_recorded():
    found = environment()
    assert found["cores"] >= 1
    assert found["packages"]["hexad-core"]
    assert found["packages"]["numpy"] == np.__version__
    assert domain_of("hexad.vision_robustness.laion_c.study:STUDY") == "vision-robustness"


def test_characters_without_a_glyph_are_one_warning(tmp_path):
    figure, axes = new_figure(4, 3)
    axes.set_title("体格指数")
    with pytest.warns(UserWarning, match="lacks") as caught:
        save_figure(figure, tmp_path / "a.png")
    assert len(caught) == 1
    assert all(letter in str(caught[0].message) for letter in "体格指数")
