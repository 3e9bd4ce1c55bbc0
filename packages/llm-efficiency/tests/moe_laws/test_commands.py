"""The command line, from `hexad` itself."""

import json
import re

import polars as pl
import pytest
from rich.console import Console

from hexad.llm_efficiency.moe_laws import (
    ChinchillaLaw,
    ClarkLaw,
    JointMoELaw,
    commands,
    law_from_json,
    plan,
)

ISSUE = ("plan", "--flops", "1e22", "--memory", "80GB", "--kv-tokens", "16384")


@pytest.fixture
def csv(make_runs, tmp_path):
    runs = make_runs(0.002)
    path = tmp_path / "runs.csv"
    names = ("n_active", "tokens", "experts", "loss")
    pl.DataFrame({name: getattr(runs, name) for name in names}).write_csv(path)
    return path


def test_plan_prints_a_table_a_sentence_and_a_warning(hexad, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, printed, warned = hexad(*ISSUE)
    assert code == 0
    assert list(tmp_path.iterdir()) == []
    wanted = plan(1e22, memory_bytes=80e9, kv_tokens=16_384, discrete=True)
    assert wanted.recommendation() in printed
    rows = [line.split() for line in printed.splitlines()[1:7]]
    assert [row[0] for row in rows] == ["1", "2", "4", "8", "16", "32"]
    assert [row[1] for row in rows] == [f"{row.width:.0f}" for row in wanted.rows]
    assert all(row[-1] == "*" for row in rows)
    assert "extrapolates: N 3.41e+09 is above the fitted" in warned


def test_plan_draws_where_it_is_told(hexad, tmp_path):
    code, printed, _ = hexad("plan", "--flops", "1e20", "--plot", tmp_path / "A.PNG")
    assert code == 0
    assert f"Plot: {tmp_path / 'A.PNG'}" in printed
    assert (tmp_path / "A.PNG").read_bytes()[:4] == b"\x89PNG"


def test_numbers_are_whole_in_a_narrow_terminal(hexad, csv, tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "stdout", Console(highlight=False, width=20))
    code, printed, _ = hexad(*ISSUE)
    assert code == 0
    best = "16 2496 3.41B 36.2B 489B 143 2.1139 78.8 GB memory *"
    assert best.split() in [line.split() for line in printed.splitlines()]
    assert "…" not in printed
    out = tmp_path / "law.json"
    code, printed, _ = hexad("fit", csv, "-o", out, "--starts", 2, "--bootstrap", 2, "--no-plot")
    law = law_from_json(out.read_text())
    rows = [line.split() for line in printed.splitlines()]
    assert [row[1] for row in rows[1:12]] == [f"{getattr(law, name):.4g}" for name in law.names()]
    assert all(row[2].startswith("[") and row[3].endswith("]") for row in rows[1:12])


def test_a_learning_rate_beyond_the_papers_runs_is_marked(hexad):
    code, printed, warned = hexad("plan", "--flops", "1e15", "--experts", "1")
    assert code == 0
    assert "(extrapolated)" in printed
    assert "the learning rate extrapolates from the paper's runs: N 6.4" in warned
    code, printed, warned = hexad("plan", "--flops", "1e20", "--experts", "8")
    assert code == 0
    assert "extrapolated" not in printed
    assert warned == ""
    _, printed, _ = hexad("plan", "--flops", "1e20", "--experts", "64", "--json")
    (line,) = json.loads(printed)["learning_rate_warnings"]
    assert line.startswith("E 64 is above")


def test_plan_prints_json_alone(hexad, tmp_path):
    code, printed, _ = hexad(*ISSUE, "--inference-tokens", "1e12", "--json")
    assert code == 0
    content = json.loads(printed)
    wanted = plan(1e22, memory_bytes=80e9, kv_tokens=16_384, inference_tokens=1e12, discrete=True)
    assert content["rows"] == json.loads(json.dumps(wanted.to_dict()))["rows"]
    assert content["plot"] is None
    assert content["learning_rate"] == pytest.approx(6.8e-5, rel=0.5)


def test_plan_by_a_law_of_ones_own(hexad, tmp_path):
    path = tmp_path / "law.json"
    path.write_text(JointMoELaw(c=2.0, ranges=None).to_json())
    code, printed, warned = hexad("plan", "--flops", "1e20", "--law", path, "--json", "--any-width")
    content = json.loads(printed)
    assert code == 0
    assert warned == ""
    assert content["best"]["loss"] == pytest.approx(plan(1e20).best.loss + 2.0 - 1.3637, rel=1e-9)
    path.write_text(ChinchillaLaw(406.4, -0.34, 410.7, -0.28, 1.69).to_json())
    code, printed, _ = hexad("plan", "--flops", "1e20", "--law", path, "--json")
    assert [row["experts"] for row in json.loads(printed)["rows"]] == [1]


def test_plan_with_little_memory_says_what_does_not_fit(hexad, tmp_path):
    code, printed, _ = hexad("plan", "--flops", "1e18", "--memory", "14MB")
    assert code == 0
    assert "E = 32 does not fit" in printed


def test_fit_writes_a_law_intervals_and_a_plot(hexad, csv, tmp_path):
    out = tmp_path / "deep" / "law.json"
    code, printed, _ = hexad("fit", csv, "-o", out, "--starts", 2, "--bootstrap", 4, "--holdout", "lowest:4")
    assert code == 0
    law = law_from_json(out.read_text())
    assert isinstance(law, JointMoELaw)
    lines = printed.splitlines()
    assert lines[0].split() == ["coefficient", "value", "95", "%", "interval"]
    assert lines[1].split()[0] == "a"
    assert lines[1].count("[") == 1
    assert "of the 4 held out" in printed
    assert re.search(r"[12] of 2 starts reached this fit", printed)
    assert {path.name for path in out.parent.iterdir()} == {"law.json", "law-residuals.png"}


def test_fit_prints_json_and_is_planned_with(hexad, csv, tmp_path):
    out = tmp_path / "law.json"
    options = ("--starts", 2, "--bootstrap", 0, "--holdout", "none", "--no-plot", "--json")
    code, printed, _ = hexad("fit", csv, "-o", out, *options)
    content = json.loads(printed)
    assert code == 0
    assert content["coefficients"]["alpha"] == law_from_json(out.read_text()).alpha
    assert content["rmse_holdout"] is None
    assert content["intervals"] == {}
    assert content["starts"] == 2
    assert content["starts_at_best"] in (1, 2)
    assert (content["starts_at_best"] == 1) == any("local minimum" in line for line in content["warnings"])
    code, printed, warned = hexad("plan", "--flops", "1e22", "--law", out)
    assert code == 0
    assert "is above the fitted" in warned


def test_help_teaches(hexad):
    for command, words in (("plan", "--inference-tokens 1e12"), ("fit", "runs.csv -o law.json")):
        code, printed, _ = hexad(command, "--help")
        assert code == 0
        assert words in printed


def test_defaults_in_the_help_can_be_given(hexad):
    _, printed, _ = hexad("plan", "--help")
    assert "(1,2,4,8,16,32)" not in printed
    assert "Default: 1,2,4,8,16,32." in " ".join(printed.replace("│", " ").split())
    assert hexad("plan", "--flops", "1e20", "--experts", "1,2,4,8,16,32")[0] == 0


def test_bad_plans_are_one_line_and_write_nothing(hexad, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    clark = tmp_path / "clark.json"
    clark.write_text(ClarkLaw(10.0, -0.1, -0.1, 0.01, 1.5, 300.0).to_json())
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    (tmp_path / "folder").mkdir()
    before = sorted(path.name for path in tmp_path.iterdir())
    for arguments, words in (
        (("--flops", "0"), "flops"),
        (("--flops", "1e14"), "too few"),
        (("--flops", "1e22", "--memory", "lots"), "--memory"),
        (("--flops", "1e22", "--memory", "80Gb"), "bits"),
        (("--flops", "1e22", "--memory", "1MB"), "1 MB of memory hold no model"),
        (("--flops", "1e60"), "beyond what is searched"),
        (("--flops", "1e18", "--inference-tokens", "1e14"), "use up the budget"),
        (("--flops", "1e22", "--experts", "1,two"), "--experts"),
        (("--flops", "1e22", "--experts", "0.5"), "experts"),
        (("--flops", "1e22", "--experts", "1,2.5"), "experts is 2.5; it must be a whole number"),
        (("--flops", "1e22", "--law", "none.json"), "does not exist"),
        (("--flops", "1e22", "--law", broken), "broken.json"),
        (("--flops", "1e22", "--law", clark), "does not fall with tokens"),
        (("--flops", "1e22", "--plot", "plan.txt"), ".png"),
        (("--flops", "1e22", "--plot", "folder"), "--plot"),
        (("--flops", "1e22", "--vocab", "0"), "vocab"),
    ):
        code, printed, error = hexad("plan", *arguments)
        assert code == 2, arguments
        assert words in error
        assert "Traceback" not in error
        assert printed == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_bad_fits_are_one_line_and_write_nothing(hexad, csv, tmp_path):
    lacking = tmp_path / "lacking.csv"
    pl.read_csv(csv).drop("loss").write_csv(lacking)
    negative = tmp_path / "negative.csv"
    pl.read_csv(csv).with_columns(loss=-pl.col("loss")).write_csv(negative)
    single = tmp_path / "single.csv"
    pl.read_csv(csv).with_columns(experts=8).write_csv(single)
    binary = tmp_path / "binary.csv"
    binary.write_bytes(bytes(range(256)))
    before = sorted(path.name for path in tmp_path.iterdir())
    out = tmp_path / "new" / "law.json"
    for arguments, words in (
        ((tmp_path / "none.csv",), "does not exist"),
        ((lacking,), "lack the column loss"),
        ((negative,), "negative.csv: loss of run 1 (the first is 1) is -"),
        ((single,), "fit the chinchilla law"),
        ((binary,), "binary.csv"),
        ((csv, "--starts", "0"), "--starts"),
        ((csv, "--bootstrap", "-1"), "--bootstrap"),
        ((csv, "--seed", "-1"), "--seed is -1"),
        ((csv, "-o", "."), "--out . is a folder"),
        ((csv, "-o", ""), "--out . is a folder"),
        ((csv, "--holdout", "some"), "holdout"),
        ((csv, "--law", "chinchilla"), "joint"),
        ((csv, "--plot", "a.txt"), ".png"),
        ((csv, "-o", csv), "also the file of runs"),
    ):
        more = () if "-o" in arguments else ("-o", out)
        code, printed, error = hexad("fit", *arguments, *more)
        assert code == 2, arguments
        assert words in error
        assert "Traceback" not in error
        assert printed == ""
    assert sorted(path.name for path in tmp_path.iterdir()) in (before, sorted([*before, "new"]))
    assert not out.exists()
