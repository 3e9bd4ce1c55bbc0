"""`hexad rl-graph gs-poweropt minimize`: files, going on, Ctrl-C, one line for a mistake."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

MODULE = """
import os, signal
from pathlib import Path
import numpy as np

def misfit(x):
    return float(np.square(x - 1).sum())

def rows(X):
    return np.square(X - 1).sum(1)

def columns(X):
    return np.square(X - 1).sum(0)

def constant(x):
    return 2.0

def broken(x):
    return 1 / 0

def failing(x):
    return float("nan")

def spiked(x):
    return 1e9 * float(np.square(x).sum())

def stopped(x):
    calls = Path("calls")
    count = int(calls.read_text()) + 1 if calls.exists() else 1
    calls.write_text(str(count))
    if count == 87:
        os.kill(os.getpid(), signal.SIGINT)
    return misfit(x)

number = 3
"""
SMALL = ("--popsize", "10", "--maxiter", "20", "--sigma", "0.5", "--power", "1")


@pytest.fixture
def run(hexad_code, capsys, tmp_path, monkeypatch):
    """Run `hexad rl-graph gs-poweropt minimize ...` beside some objectives; gives code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    monkeypatch.delitem(sys.modules, "objectives", raising=False)
    Path("objectives.py").write_text(MODULE)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode

    def call(*words):
        code = hexad_code("rl-graph", "gs-poweropt", "minimize", *words)
        return code, *capsys.readouterr()

    yield call
    sys.dont_write_bytecode = before
    sys.modules.pop("objectives", None)


def read(folder="gs-poweropt-run"):
    return json.loads((Path(folder) / "result.json").read_text())


def test_a_function_of_this_folder_is_minimised(run):
    code, stdout, _ = run("objectives:misfit", "--x0=-1,2.5", *SMALL)
    assert code == 0
    assert "20 steps, 202 evaluations" in stdout
    assert "sigma/sqrt(popsize) = 0.158" in stdout
    found = read()
    assert sum((x - 1) ** 2 for x in found["x"]) == pytest.approx(found["fun"])
    assert found["fun"] < 0.5
    with Path("gs-poweropt-run/history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["evaluations"]) for row in rows] == list(range(11, 202, 10))
    best = [float(row["best"]) for row in rows]
    assert best == sorted(best, reverse=True)
    with Image.open("gs-poweropt-run/progress.png") as picture:
        assert np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0).shape[0] > 20


def test_json_is_all_that_is_printed(run):
    code, stdout, stderr = run("objectives:misfit", "--x0=-1,2.5", "--json", *SMALL)
    assert code == 0
    assert stderr == ""
    printed = json.loads(stdout)
    names = ("result.json", "history.csv", "progress.png")
    assert printed.pop("files") == [f"gs-poweropt-run/{name}" for name in names]
    assert printed == read()


def test_all_ways_of_calling_give_the_same(run):
    results = []
    for place, words in enumerate(
        (
            ("objectives:misfit",),
            ("objectives:rows", "--vectorized", "rows"),
            ("objectives:columns", "--vectorized", "columns"),
            ("objectives:misfit", "--workers", "2"),
        )
    ):
        assert run(*words, "--x0=-1,2.5", "--out", str(place), *SMALL)[0] == 0
        results.append(read(str(place)))
    for other in results[1:]:
        np.testing.assert_allclose(other["x"], results[0]["x"], rtol=1e-9)
        assert other["nfev"] == results[0]["nfev"]


def test_vectors_come_from_files_and_bounds_hold(run):
    np.save("start.npy", np.full(3, 4.0))
    Path("sizes.txt").write_text("1\n2\n3\n")
    words = ("--x0", "start.npy", "--x-scale", "sizes.txt", "--bounds", "3:5", "--polish")
    assert run("objectives:misfit", *words, *SMALL)[0] == 0
    np.testing.assert_allclose(read()["x"], [3, 3, 3], atol=1e-6)
    Path("start.csv").write_text("4,0.5,2")
    words = ("--x0", "start.csv", "--bounds", ":5,0:0.75,1.5:", "--polish", "--out", "other")
    assert run("objectives:misfit", *words, *SMALL)[0] == 0
    np.testing.assert_allclose(read("other")["x"], [1, 0.75, 1.5], atol=1e-3)


def test_more_steps_go_on_from_where_it_was(run):
    assert run("objectives:misfit", "--x0=-1,2.5", *SMALL)[0] == 0
    more = ("--x0=-1,2.5", *SMALL, "--maxiter", "35")
    assert run("objectives:misfit", *more, "--json")[0] == 0
    assert run("objectives:misfit", *more, "--out", "whole")[0] == 0
    resumed, whole = read(), read("whole")
    assert (resumed.pop("resumed_at"), whole.pop("resumed_at")) == (20, 0)
    assert resumed == whole
    histories = [Path(folder, "history.csv").read_text() for folder in ("gs-poweropt-run", "whole")]
    assert histories[0] == histories[1]


def test_other_settings_are_not_mixed_in(run):
    assert run("objectives:misfit", "--x0=-1,2.5", *SMALL)[0] == 0
    before = {path.name: path.read_bytes() for path in Path("gs-poweropt-run").iterdir()}
    code, _, stderr = run("objectives:misfit", "--x0=-1,2.5", *SMALL, "--sigma", "0.7")
    assert code == 2
    assert "holds a search with sigma = 0.5, not 0.7; name another folder, or pass --fresh" in stderr
    assert {path.name: path.read_bytes() for path in Path("gs-poweropt-run").iterdir()} == before
    assert run("objectives:misfit", "--x0=-1,2.5", *SMALL, "--sigma", "0.7", "--fresh")[0] == 0
    assert read()["nit"] == 20
    Path("gs-poweropt-run/state.npz").write_bytes(b"broken")
    code, _, stderr = run("objectives:misfit", "--x0=-1,2.5", *SMALL)
    assert code == 2
    assert "state.npz is no state of a search" in stderr


def test_ctrl_c_keeps_the_best_point_and_the_same_command_goes_on(run):
    words = ("--x0=-1,2.5", *SMALL)
    code, stdout, stderr = run("objectives:stopped", *words)
    assert code == 130
    assert (
        "Interrupted: gs-poweropt-run keeps the best point; the same command goes on from step 8." in stderr
    )
    found = read()
    assert (found["status"], found["nit"], found["nfev"]) == (130, 8, 86)
    assert f"{found['fun']:.8g}" in stdout
    assert run("objectives:stopped", *words)[0] == 0
    assert run("objectives:misfit", *words, "--out", "whole")[0] == 0
    resumed, whole = read(), read("whole")
    assert resumed["resumed_at"] == 8
    for name in ("x", "fun", "x_mean", "fun_mean", "nfev", "nit"):
        assert resumed[name] == whole[name]
    # 87 before, the best point checked, 12 steps, the mean.
    assert int(Path("calls").read_text()) == 87 + 1 + 120 + 1, "the step in hand alone is done again"


def test_a_failing_objective_is_one_line_and_keeps_what_was_done(run):
    code, _, stderr = run("objectives:broken", "--x0", "1", *SMALL)
    assert code == 2
    assert "objectives:broken failed in step 1 (ZeroDivisionError: division by zero)" in stderr
    assert stderr.count("\n") == 1
    assert Path("gs-poweropt-run/state.npz").exists()
    code, _, stderr = run("objectives:failing", "--x0", "1", "--out", "other", *SMALL)
    assert code == 2
    assert "fun is nan at [" in stderr


def test_warnings_are_lines_and_in_the_report(run):
    code, _, stderr = run("objectives:spiked", "--x0", "1,1,1", "--maxiter", "40", "--popsize", "10")
    assert code == 0
    assert stderr.startswith("warning: for 20 steps about one sample of 10 has had all the weight")
    assert len(read()["warnings"]) == 1


def test_a_constant_objective_is_said(run):
    code, stdout, _ = run("objectives:constant", "--x0", "1,2", *SMALL)
    assert code == 0
    assert "no step had a direction" in stdout
    assert read()["success"] is False


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("objectives.py", "--x0", "1"), "must be written module:function, such as model:loss"),
        (("objectives:misfits", "--x0", "1"), "cannot be imported"),
        (("nowhere:misfit", "--x0", "1"), "cannot be imported (No module named 'nowhere')"),
        (("objectives:number", "--x0", "1"), "is int; it must be a function"),
        (("objectives:misfit", "--x0", "one"), "must be numbers by commas"),
        (("objectives:misfit", "--x0", "none.npy"), "none.npy does not exist"),
        (("objectives:misfit", "--x0", "objectives.py"), "holds no vector of numbers"),
        (("objectives:misfit", "--x0", "1,nan"), "x0[1] is nan"),
        (("objectives:misfit", "--x0", "1", "--bounds", "0-2"), "must be low:high"),
        (("objectives:misfit", "--x0", "1,1", "--bounds", "0:2,0:2,0:2"), "bounds has 3 pairs"),
        (("objectives:misfit", "--x0", "3", "--bounds", "0:2"), "x0 must lie within"),
        (("objectives:misfit", "--x0", "1", "--sigma", "0"), "sigma is 0.0"),
        (("objectives:misfit", "--x0", "1", "--popsize", "1"), "popsize is 1"),
        (("objectives:misfit", "--x0", "1", "--maxiter", "0"), "--maxiter is 0"),
        (("objectives:misfit", "--x0", "1", "--maxfev", "5"), "maxfev is 5, less than the 101"),
        (("objectives:misfit", "--x0", "1", "--seed", "-1"), "--seed is -1"),
        (("objectives:misfit", "--x0", "1", "--workers", "0"), "workers is 0"),
        (("objectives:rows", "--x0", "1", "--workers", "2", "--vectorized", "rows"), "choose one of them"),
        (("objectives:misfit", "--x0", "1", "--shift", "3"), "shift is for transform='power'"),
        (("objectives:misfit", "--x0", "1", "--x-scale", "1,2"), "x_scale has the shape (2,)"),
        (("objectives:misfit", "--x0", "1", "--out", "objectives.py"), "is a file; name a folder"),
    ],
)
def test_mistakes_are_one_line_and_touch_nothing(words, message, run):
    code, _, stderr = run(*words)
    assert code == 2
    assert message in stderr
    assert stderr.count("\n") == 1
    assert {path.name for path in Path().iterdir()} == {"objectives.py"}


def test_help_teaches(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, stdout, _ = run("--help")
    assert code == 0
    for word in (
        "--x0",
        "--power",
        "Ctrl-C",
        "simulator:misfit",
        "sigma / sqrt(popsize)",
        "--noisy",
        "--sigma 0.1",
    ):
        assert word in stdout
