"""The study at its tiny preset, from the command line, and its data."""

import json
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from hexad.core.errors import InputError
from hexad.science_ml.permucate.packaged import NHEFS_COVARIATES, load_acic_covariates, load_nhefs
from hexad.science_ml.permucate.simulations import equicorrelated_data, linear_data, null_data, semi_synthetic


@pytest.fixture(scope="module")
def proof(tmp_path_factory):
    """What `hexad prove permucate --preset tiny --json` prints."""
    out = tmp_path_factory.mktemp("results")
    command = [sys.executable, "-m", "hexad.core.cli", "prove", "permucate", "--preset", "tiny", "--json"]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout), out


def test_the_tiny_study_measures_all_arms(proof):
    page = proof[0]["pages"][0]
    assert not page["errors"]
    verdicts = {item["name"]: item["verdict"] for item in page["judgements"]}
    assert {"null-variance", "driver-variance", "type-one"} <= set(verdicts)
    assert verdicts["acic-power"] == "not measured"
    assert "not measured" not in (verdicts["null-variance"], verdicts["type-one"])


def test_the_records_are_paired_and_in_range(proof):
    records = pl.concat([pl.read_parquet(path) for path in proof[1].rglob("*.parquet")])
    cases = {arm: set(records.filter(arm=arm)["case"]) for arm in ("permucate", "loco", "permutation")}
    assert cases["permucate"] == cases["loco"] == cases["permutation"]
    for metric in ("power", "false_positives", "auroc"):
        values = records.filter(metric=metric)["value"]
        assert values.is_between(0, 1).all()
    squares = records.filter(metric="null_variance", arm="permucate")["value"]
    assert len(squares) == 2 * 3
    assert set(records.filter(metric="importance")["case"]) == {f"NHEFS/{name}" for name in NHEFS_COVARIATES}


def test_the_report_has_its_figures(proof):
    assert len(list(proof[1].rglob("*.png"))) >= 2


def test_the_packaged_data_are_those_of_the_docstrings():
    acic, nhefs = load_acic_covariates(), load_nhefs()
    assert acic.shape == (4802, 55)
    assert nhefs.shape == (1566, 11)
    assert nhefs["qsmk"].sum() == 403
    # The textbook's unadjusted difference in weight gain is 2.5 kg (Hernan and Robins, section 12.2).
    gain = nhefs.group_by("qsmk").agg(pl.col("wt82_71").mean()).sort("qsmk")["wt82_71"]
    assert gain[1] - gain[0] == pytest.approx(2.54, abs=0.01)


def test_simulations_have_their_moments():
    sample = linear_data(100_000, 0)
    # Standard errors are 0.003 to 0.01.
    assert np.corrcoef(sample.X[:, 0], sample.X[:, 1])[0, 1] == pytest.approx(0.5, abs=0.015)
    assert np.corrcoef(sample.X[:, 1], sample.X[:, 2])[0, 1] == pytest.approx(0, abs=0.015)
    noise = sample.y - sample.X[:, 2] + sample.X[:, 5] - sample.treatment * sample.tau
    assert noise.std() == pytest.approx(3, abs=0.03)
    assert (
        sample.treatment[sample.X[:, 0] < -1].mean()
        > 0.55
        > 0.45
        > sample.treatment[sample.X[:, 0] > 1].mean()
    )
    assert null_data(50, 0).tau.std() == 0
    wide = equicorrelated_data(20_000, 0, p=12, important=3)
    off = np.corrcoef(wide.X.T)[~np.eye(12, dtype=bool)]
    np.testing.assert_allclose(off, 0.3, atol=0.03)
    assert wide.tau.std() == pytest.approx(0.8)
    assert wide.modifiers.sum() == 3
    real = semi_synthetic(np.random.default_rng(0).normal(size=(500, 20)), 0, modifiers=4)
    assert real.modifiers.sum() == 4
    fit = np.linalg.lstsq(np.column_stack([real.X, np.ones(500)]), real.tau, rcond=None)[0][:20]
    np.testing.assert_array_equal(np.abs(fit) > 1e-8, real.modifiers)
    for call in (
        lambda: equicorrelated_data(10, 0, p=3, important=4),
        lambda: semi_synthetic(np.zeros((5, 10)), 0),
    ):
        with pytest.raises(InputError):
            call()
