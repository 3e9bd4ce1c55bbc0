"""The study at its tiny preset, from the command line's own entry."""

import json
import subprocess
import sys

import polars as pl
import pytest

from hexad.rl_graph.gas.study import STUDY


@pytest.fixture(scope="module")
def proof(tmp_path_factory):
    """What `hexad prove gas --preset tiny --json` prints, and where."""
    out = tmp_path_factory.mktemp("results")
    command = [sys.executable, "-m", "hexad.core.cli", "prove", "gas", "--preset", "tiny", "--json"]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["pages"][0], out


def test_all_arms_are_measured_on_the_same_tasks(proof):
    page, out = proof
    assert not page["errors"]
    records = pl.concat([pl.read_parquet(path) for path in out.rglob("*.parquet")])
    for arm in STUDY.arms:
        cases = records.filter(arm=arm.name, metric="success")["case"].to_list()
        assert cases == [f"medium/task {task}" for task in range(1, 6)]
    assert records.filter(metric="success")["value"].is_between(0, 100).all()
    assert set(records.filter(metric="nodes")["arm"]) == {"gas", "no-te", "raw-graph"}
    assert records.filter(arm="no-te", metric="kept")["value"].to_list() == [100.0]
    assert records.filter(metric="spearman")["arm"].to_list() == ["gas"]


def test_what_is_trained_is_shared_by_the_arms(proof):
    (home,) = (proof[1] / "gas/tiny/stages").iterdir()
    assert home.name == "medium-0"
    assert {path.name for path in home.iterdir()} >= {"data.npz", "gas", "gcbc"}


def test_nothing_is_judged_at_this_size_and_pictures_are_drawn(proof):
    page, out = proof
    assert {item["verdict"] for item in page["judgements"]} == {"not measured"}
    assert {figure["name"] for figure in page["figures"]} == {"success", "traces"}
    for figure in page["figures"]:
        assert (out / "gas/tiny" / figure["file"]).stat().st_size > 5_000


def test_cloning_gets_as_many_steps_as_all_stages():
    for preset in STUDY.presets.values():
        for case in preset.config.cases:
            assert case.tdr_steps > 0
            assert case.policy_steps > 0
    assert STUDY.presets["full"].config.episodes >= 10
    assert STUDY.presets["full"].seeds >= 3
