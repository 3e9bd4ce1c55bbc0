"""The command as a user calls it: `hexad science-ml permucate data.csv ...`."""

import json
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from hexad.core.cli import main
from hexad.science_ml.permucate.simulations import linear_data


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """Call the command line in this process and folder; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hexad", "science-ml", "permucate", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return call


@pytest.fixture
def frame() -> pl.DataFrame:
    sample = linear_data(600, 1)
    city = np.random.default_rng(0).choice(["Bonn", "Oslo"], 600)
    columns = {name: sample.X[:, j] for j, name in enumerate(("age", "dose", "bmi", "hb"))}
    return pl.DataFrame({**columns, "city": city, "T": sample.treatment, "Y": sample.y})


FAST = ("--nuisances", "linear", "--permutations", "10", "--jobs", "1")


def test_a_file_alone_ranks_it(run, frame, tmp_path):
    frame.write_csv("data.csv")
    code, stdout, _ = run("data.csv", "--treatment", "T", "--outcome", "Y", *FAST)
    assert code == 0
    rows = [line.split() for line in stdout.splitlines()]
    assert rows[1][:2] == ["1", "dose"]
    assert {row[1] for row in rows[1:6]} == {"age", "dose", "bmi", "hb", "city"}
    assert "600 rows" in stdout
    table = pl.read_csv(tmp_path / "permucate-report/importances.csv")
    assert table["variable"][0] == "dose"
    assert ((table["low"] < table["importance"]) & (table["importance"] < table["high"])).all()
    assert (tmp_path / "permucate-report/importances.png").stat().st_size > 5_000
    assert (
        json.loads((tmp_path / "permucate-report/settings.json").read_text())["settings"]["treatment"] == "T"
    )


def test_the_named_command_gives_json_groups_loco_and_adjusted_p(run, frame):
    frame.write_parquet("data.parquet")
    code, stdout, _ = run(
        "rank", "data.parquet", "-t", "T", "-y", "Y", "--group", "body=bmi,hb", "--loco", "--adjust", "bh",
        "--drop", "city", "--json", *FAST,
    )  # fmt: skip
    assert code == 0
    found = json.loads(stdout)
    assert {row["variable"] for row in found["importances"]} == {"age", "dose", "body"}
    assert {"loco", "loco_p_value", "p_adjusted"} <= set(found["importances"][0])
    assert found["rows"] == 600
    assert found["treated"] == frame["T"].sum()


def test_labels_of_the_treatment(run, frame):
    frame.with_columns(T=pl.when(pl.col("T") == 1).then(pl.lit("drug")).otherwise(pl.lit("none"))).write_csv(
        "a.csv"
    )
    frame.write_csv("b.csv")
    code, _, stderr = run("a.csv", "-t", "T", "-y", "Y", *FAST)
    assert code == 2
    assert "say which is treated, such as --treated none" in stderr
    outputs = [
        run(*arguments, "-t", "T", "-y", "Y", "--json", *FAST)[1]
        for arguments in (("a.csv", "--treated", "drug"), ("b.csv",))
    ]
    assert json.loads(outputs[0])["importances"] == json.loads(outputs[1])["importances"]


def test_gaps_are_refused_dropped_or_filled(run, frame):
    holes = frame.with_columns(
        age=pl.when(pl.int_range(600) % 50 == 0).then(None).otherwise(pl.col("age")),
        city=pl.when(pl.int_range(600) % 60 == 1).then(None).otherwise(pl.col("city")),
        Y=pl.when(pl.int_range(600) == 7).then(None).otherwise(pl.col("Y")),
    )
    holes.write_csv("data.csv", null_value="NA")
    code, _, stderr = run("data.csv", "-t", "T", "-y", "Y", *FAST)
    assert code == 2
    assert "missing values in Y (1), age (12), city (10); pass --missing drop" in stderr
    assert not Path("permucate-report").exists()
    assert "23 of 600 rows left out" in run("data.csv", "-t", "T", "-y", "Y", "--missing", "drop", *FAST)[1]
    filled = run("data.csv", "-t", "T", "-y", "Y", "--missing", "impute", *FAST)[1]
    assert "1 of 600 rows left out" in filled
    assert "filled in by median or most frequent level: age, city" in filled


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nodata.csv", "-t", "T", "-y", "Y"), "does not exist"),
        (("data.csv", "-t", "t", "-y", "Y"), "no column 't' (treatment)"),
        (("data.csv", "-t", "T", "-y", "T"), "are both 'T'"),
        (("data.csv", "-t", "T", "-y", "city"), "outcome 'city' holds text"),
        (("data.csv", "-t", "age", "-y", "Y"), "holds 600 values"),
        (("data.csv", "-t", "T", "-y", "Y", "--treated", "2"), "holds 0 and 1, not '2'"),
        (
            ("data.csv", "-t", "T", "-y", "Y", "--drop", "sity"),
            "no column 'sity' to drop; did you mean 'city'?",
        ),
        (("data.csv", "-t", "T", "-y", "Y", "--covariates", "age,Y"), "among the covariates"),
        (("data.csv", "-t", "T", "-y", "Y", "--group", "age"), "write name=column,column"),
        (("data.csv", "-t", "T", "-y", "Y", "--group", "g=age", "--group", "g=hb"), "given twice"),
        (("data.csv", "-t", "T", "-y", "Y", "--folds", "60"), "leave 10 test rows"),
        (("data.csv", "-t", "T", "-y", "Y", "--jobs", "0"), "--jobs is 0"),
        (("data.csv", "-t", "T", "-y", "Y", "-o", "data.csv"), "is a file; name a folder"),
        (("broken.csv", "-t", "T", "-y", "Y"), "broken.csv is not UTF-8 text"),
        (("index.csv", "-t", "T", "-y", "Y"), "index.csv has no name for its column 1"),
        (("twice.csv", "-t", "T", "-y", "Y"), "several columns called age"),
        (("data.csv", "-t", "T", "-y", "Y", "--covariates", "age,age"), "--covariates names age twice"),
        (("data.csv", "-t", "T", "-y", "Y", "--permutations", "0"), "--permutations is 0"),
        (("empty.csv", "-t", "T", "-y", "Y"), "no readable CSV"),
        (("few.csv", "-t", "T", "-y", "Y"), "treatment arm 1 has 4 rows"),
    ],
)
def test_mistakes_are_one_line_and_touch_nothing(arguments, message, run, frame):
    frame.write_csv("data.csv")
    Path("broken.csv").write_bytes(b"\x00\x01,\xff\n1")
    Path("empty.csv").write_text("")
    text = Path("data.csv").read_text()
    Path("index.csv").write_text("\n".join(f"{n}," + line for n, line in enumerate(text.splitlines()))[1:])
    Path("twice.csv").write_text(text.replace("hb", "age", 1))
    pl.concat([frame.filter(T=0), frame.filter(T=1).head(4)]).write_csv("few.csv")
    code, _, stderr = run(*arguments)
    assert code == 2
    assert message in stderr
    assert stderr.count("\n") == 1
    assert not Path("permucate-report").exists()


def test_a_name_that_looks_like_mathematics_is_drawn_as_it_is(run, frame):
    frame.rename({"age": r"$\frac{x}$"}).write_csv("data.csv")
    code, stdout, _ = run("data.csv", "-t", "T", "-y", "Y", *FAST)
    assert code == 0
    assert r"$\frac{x}$" in stdout
    assert Path("permucate-report/importances.png").stat().st_size > 5000


def test_warnings_reach_scripts_too(run, frame):
    frame.with_columns(same=pl.lit(1.0)).write_csv("data.csv")
    code, stdout, stderr = run("data.csv", "-t", "T", "-y", "Y", "--json", *FAST)
    assert code == 0
    assert json.loads(stdout)["warnings"] == ["constant covariates have importance 0: 'same'"]
    assert "warning: constant covariates" in stderr


def test_a_mistyped_command_is_no_file(run):
    code, _, stderr = run("rnak")
    assert code == 2
    assert "No such command 'rnak'" in stderr


def test_help_teaches(run):
    code, stdout, _ = run("rank", "--help")
    assert code == 0
    assert "--treatment" in stdout


def test_a_constant_outcome_and_names_without_glyphs_are_warned_of(run, frame):
    frame.with_columns(Y=pl.lit(3.0)).rename({"age": "年齢"}).write_csv("data.csv")
    code, _, stderr = run("data.csv", "-t", "T", "-y", "Y", *FAST)
    assert code == 0
    lines = stderr.splitlines()
    assert [line[:8] for line in lines] == ["warning:"] * 2
    assert "the outcome is 3 in all rows" in lines[0]
    assert "lacks '年齢'" in lines[1] or "lacks '齢年'" in lines[1]


def test_a_narrow_terminal_keeps_the_names(run, frame, monkeypatch):
    frame.write_csv("data.csv")
    monkeypatch.setenv("COLUMNS", "40")
    _, stdout, _ = run("data.csv", "-t", "T", "-y", "Y", *FAST)
    first = stdout.splitlines()[1].split()
    assert first[:2] == ["1", "dose"]
    assert len(first) == 4  # no interval
