"""The study at its tiny preset, from the command line, and what its arms are."""

import contextlib
import io
import json
import sys

import polars as pl
import pytest

from hexad.core.cli import main
from hexad.federated.fedswa.study import STUDY
from hexad.federated.fedswa.study_arms import RATES, VARIANTS


@pytest.fixture(scope="module")
def proof(tmp_path_factory):
    """What `hexad prove fedswa --preset tiny --json` prints."""
    out = tmp_path_factory.mktemp("results")
    arguments = ["prove", "fedswa", "--preset", "tiny", "--json", "--out", str(out)]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.setattr(sys, "argv", ["hexad", *arguments])
        with contextlib.suppress(SystemExit):
            main()
    return json.loads(printed.getvalue()), out


def test_the_tiny_study_measures_every_arm(proof):
    page = proof[0]["pages"][0]
    assert not page["errors"]
    assert {item["verdict"] for item in page["judgements"]} == {"not measured"}
    assert len(list(proof[1].rglob("*.png"))) == 3
    records = pl.concat([pl.read_parquet(path) for path in proof[1].rglob("*.parquet")])
    assert set(records["arm"]) == set(VARIANTS)
    for arm, variant in VARIANTS.items():
        rows = records.filter(arm=arm)
        assert set(rows["metric"]) == {metric.name for metric in STUDY.metrics}
        traffic = rows.filter(metric="megabytes")["value"].item()
        plain = records.filter(arm="fedavg", metric="megabytes")["value"].item()
        assert traffic == pytest.approx(plain * (2 if variant.doubled else 1))
        accuracy = rows.filter(metric="accuracy")["value"].item()
        assert accuracy * 3000 == pytest.approx(round(accuracy * 3000))  # three tests of 1000 digits
    distances = {
        arm: records.filter(arm=arm, metric="distance", case="s=20")["value"].item() for arm in VARIANTS
    }
    assert distances["fedavg"] == distances["fedavg-equal"]
    assert len(set(distances.values())) == len(VARIANTS) - 1


def test_every_arm_has_a_rate_of_the_grid():
    assert RATES.keys() == VARIANTS.keys()
    assert set(RATES.values()) <= {0.03, 0.1, 0.3, 1.0}
