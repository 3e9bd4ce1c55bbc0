"""The study at its tiny size, from the command line's own entry."""

import json

import numpy as np
import pytest

from hexad.llm_efficiency.moe_laws.published import TABLE_1, TABLE_4
from hexad.llm_efficiency.moe_laws.study_recovery import _beyond_rounding, measure_tables


@pytest.fixture(scope="module")
def folder(prove, tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    assert prove("moe-laws", out) == 0
    return out


@pytest.fixture(scope="module")
def value(measured, folder):
    """A function from (arm, metric, case) to what was measured."""
    found = measured("moe-laws", folder)
    return lambda arm, metric, case="": found[arm, metric, case]


LAWS = ("joint", "chinchilla", "separable", "raw-experts", "mean-huber")
TRAINED = ("dense", "switch-2", "switch-4", "switch-8")


@pytest.mark.slow
def test_every_arm_measures(value):
    for arm in LAWS:
        for metric in ("heldout_error", "ladder_rmse", "train_rmse", "n_star_error", "fit_seconds"):
            assert np.isfinite(value(arm, metric))
            assert value(arm, metric) > 0
    for arm in TRAINED:
        for width in (16, 32):
            losses = [value(arm, "loss", f"d{width}/{tokens}") for tokens in (20_480, 40_960, 61_440)]
            assert losses == sorted(losses, reverse=True), "more tokens, lower loss"
            assert losses[0] < np.log(256)


@pytest.mark.slow
def test_ladders_are_trained_once_and_shared(prove, folder):
    ladder = folder / "moe-laws" / "tiny" / "ladder" / "seed-0"
    assert len(list(ladder.glob("*.json"))) == 8
    before = {path: path.stat().st_mtime_ns for path in ladder.glob("*.json")}
    assert prove("moe-laws", folder, "--arms", "joint,dense") == 0
    assert {path: path.stat().st_mtime_ns for path in ladder.glob("*.json")} == before


@pytest.mark.slow
def test_figures_are_drawn_and_tables_judged(folder):
    tiny = folder / "moe-laws" / "tiny"
    names = {path.stem for path in (tiny / "figures").glob("*.png")}
    assert names == {"ladder", "predictions", "experts"}
    content = json.loads((tiny / "page.json").read_text())
    verdicts = {item["name"]: item["verdict"] for item in content["judgements"]}
    assert verdicts["table-1"] == verdicts["table-2"] == verdicts["table-4"] == "holds"
    assert verdicts["experts-help"] == "not measured"


def test_tables_are_computed():
    found = {item.metric: item.value for item in measure_tables()}
    assert 0 < found["table1_error"] < 0.02
    assert 0 < found["table4_error"] < 0.003
    assert 9 <= found["table2_agree"] <= 12
    assert found["table2_gap"] < 0.007
    assert len(TABLE_1) == 12
    assert len(TABLE_4) == 6


@pytest.mark.parametrize(
    ("value", "printed", "error"),
    [(1.749e9, 1.7e9, 0), (1.76e9, 1.7e9, 0.01 / 1.7), (12.0e9, 11.4e9, 0.55 / 11.4), (985e6, 990e6, 0)],
)
def test_distances_are_from_what_rounds_so(value, printed, error):
    assert _beyond_rounding(value, printed) == pytest.approx(error, abs=1e-6)
