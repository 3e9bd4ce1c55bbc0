"""The study at its tiny size, from the command line's own entry."""

import importlib.util
import json
import sys

import pytest

from hexad.core.errors import MissingExtraError
from hexad.core.methods import get_method

for needed in ("lightning_fabric", "sklearn", "transformers"):
    pytest.importorskip(needed)

ARMS = ("quest", "no-hadamard", "no-trust", "absmax", "lsq", "fp32")


@pytest.fixture(scope="module")
def folder(prove, tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    assert prove("quest", out) == 0
    return out


@pytest.fixture(scope="module")
def value(measured, folder):
    """A function from (arm, metric, case) to what was measured."""
    found = measured("quest", folder)
    return lambda arm, metric, case="w2a2": found[arm, metric, case]


def test_every_arm_measures(value):
    for arm in ARMS:
        assert 4 < value(arm, "loss") < 6, "near the entropy of 256 bytes after four steps"
        assert value(arm, "below_unigram") == pytest.approx(
            value("fp32", "below_unigram") + value("fp32", "loss") - value(arm, "loss")
        )
        for width in (4, 2, 1):
            assert 0 <= value(arm, "accuracy", f"digits/w{width}a{width}") <= 1
    for arm in ("quest", "no-hadamard", "no-trust", "absmax"):
        assert 0.2 < value(arm, "alignment") < 1
    assert len({value(arm, "loss") for arm in ARMS}) == len(ARMS), "the arms differ"


def test_the_packed_model_is_measured(value):
    # Two bits and a float32 a row: 1/16 and a little more for rows of 32 to 128.
    assert 1 / 16 < value("quest", "packed_ratio") < 1 / 8
    assert value("quest", "packed_difference") < 1e-4


def test_figures_are_drawn(folder):
    figures = folder / "quest" / "tiny" / "figures"
    assert {path.stem for path in figures.glob("*.png")} == {"losses", "alignments"}


def test_a_second_run_measures_nothing_again(prove, folder, capsys):
    records = folder / "quest" / "tiny" / "records"
    before = {path: path.stat().st_mtime_ns for path in records.rglob("*.parquet")}
    assert len(before) == len(ARMS)
    assert prove("quest", folder) == 0
    assert {path: path.stat().st_mtime_ns for path in records.rglob("*.parquet")} == before
    content = json.loads(capsys.readouterr().out)
    assert {item["verdict"] for item in content["pages"][0]["judgements"]} == {"not measured"}


def test_a_trial_that_stopped_half_way_gives_the_same_numbers(tmp_path, value, monkeypatch):
    from hexad.core.studies import Trial
    from hexad.llm_efficiency.quest import study_language
    from hexad.llm_efficiency.quest.study import STUDY, run

    config = STUDY.preset("tiny").config
    trial = Trial("quest", 0, config, tmp_path)
    original = study_language.gradient_alignment

    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(study_language, "gradient_alignment", stop)
    with pytest.raises(KeyboardInterrupt):
        list(run(trial, "quest"))
    assert list(tmp_path.rglob("step-*.safetensors")), "half of the training is kept"
    monkeypatch.setattr(study_language, "gradient_alignment", original)
    for _ in range(2):  # and once more over a training that is done
        found = {(item.metric, item.case): item.value for item in run(trial, "quest")}
        assert found["loss", "w2a2"] == value("quest", "loss")
        assert found["alignment", "w2a2"] == pytest.approx(value("quest", "alignment"), abs=1e-6)


def test_the_sweep_keeps_clear_of_the_seeds_that_are_reported():
    from hexad.llm_efficiency.quest.study import STUDY
    from hexad.llm_efficiency.quest.sweep import SWEEP

    reported, swept = (
        {preset.config.first_seed + seed for preset in study.presets.values() for seed in range(preset.seeds)}
        for study in (STUDY, SWEEP)
    )
    assert not reported & swept


def test_a_missing_package_is_named_before_anything_runs(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sklearn" else find(name))
    monkeypatch.delitem(sys.modules, "hexad.llm_efficiency.quest.study", raising=False)
    with pytest.raises(MissingExtraError, match=r'sklearn.*pip install "hexad-llm-efficiency\[study\]"'):
        get_method("quest").load_study()
