"""A folder of the command: who may write to it, what goes on, and what is never lost."""

import json
from pathlib import Path

import numpy as np
import pytest

from hexad.core.files import alone_in

MODULE = """
from pathlib import Path
import numpy as np

def misfit(x):
    return float(np.square(x - 1).sum()) + float(Path("constant").read_text())

def noisy(x, rng=np.random.default_rng(0)):
    return float(np.square(x - 1).sum()) + rng.normal()

def late(x, calls=[]):
    calls.append(1)
    return float("nan") if len(calls) == 95 else float(np.square(x - 1).sum())

def talking(x):
    print("hello")
    return float(np.square(x - 1).sum())

def leaving(x):
    raise SystemExit(4)

print("module read")
"""
SMALL = ("--x0=-1,2.5", "--popsize", "10", "--maxiter", "20", "--sigma", "0.5", "--power", "1")


@pytest.fixture
def run(hexad_code, capsys, tmp_path, monkeypatch):
    """Run the command beside some objectives; gives code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("resumed.py").write_text(MODULE)
    Path("constant").write_text("0")

    def call(*words):
        monkeypatch.delitem(__import__("sys").modules, "resumed", raising=False)
        code = hexad_code("rl-graph", "gs-poweropt", "minimize", *words)
        return code, *capsys.readouterr()

    return call


def read(folder="gs-poweropt-run"):
    return json.loads((Path(folder) / "result.json").read_text())


def test_a_changed_function_is_refused(run):
    assert run("resumed:misfit", *SMALL)[0] == 0
    before = {path.name: path.read_bytes() for path in Path("gs-poweropt-run").iterdir()}
    Path("constant").write_text("5")
    code, _, stderr = run("resumed:misfit", *SMALL, "--maxiter", "30")
    assert code == 2
    assert "at the best point of gs-poweropt-run, and was" in stderr
    assert "pass --fresh to begin anew, or --noisy if it is random" in stderr
    assert {path.name: path.read_bytes() for path in Path("gs-poweropt-run").iterdir()} == before
    assert run("resumed:misfit", *SMALL, "--maxiter", "30", "--noisy")[0] == 0
    assert run("resumed:noisy", *SMALL, "--out", "other")[0] == 0
    assert run("resumed:noisy", *SMALL, "--out", "other", "--maxiter", "30")[0] == 2
    assert run("resumed:noisy", *SMALL, "--out", "other", "--maxiter", "30", "--noisy")[0] == 0


def test_a_polished_point_is_not_lost(run):
    assert run("resumed:misfit", *SMALL, "--polish")[0] == 0
    polished = read()
    assert polished["fun"] < 1e-6
    for more in ("20", "25"):
        assert run("resumed:misfit", *SMALL, "--maxiter", more)[0] == 0
        assert (read()["fun"], read()["x"]) == (polished["fun"], polished["x"])
    assert run("resumed:misfit", *SMALL, "--maxiter", "25", "--out", "whole")[0] == 0
    assert read()["x_mean"] == read("whole")["x_mean"], "the steps are those of a run without polishing"


def test_one_run_at_a_time_writes_to_a_folder(run):
    with alone_in("gs-poweropt-run"):
        code, _, stderr = run("resumed:misfit", *SMALL)
    assert code == 2
    assert "another run is writing to gs-poweropt-run" in stderr
    assert {path.name for path in Path("gs-poweropt-run").iterdir()} <= {".lock"}
    assert run("resumed:misfit", *SMALL)[0] == 0


def test_a_limit_that_was_passed_before_is_said(run):
    assert run("resumed:misfit", *SMALL)[0] == 0
    code, stdout, _ = run("resumed:misfit", *SMALL, "--maxiter", "10")
    assert code == 0
    assert "gs-poweropt-run held 20 steps already, and no step was made" in stdout


def test_a_late_failure_says_how_far_it_came_and_the_flag(run):
    code, _, stderr = run("resumed:late", *SMALL)
    assert code == 2
    assert "pass --nan-policy worst (in step 10; what was done before is kept in gs-poweropt-run)" in stderr
    assert stderr.count("\n") == 1
    with np.load("gs-poweropt-run/state.npz") as state:
        assert len(state["history"]) == 9


def test_a_function_that_leaves_is_an_error(run):
    code, _, stderr = run("resumed:leaving", *SMALL)
    assert code == 2
    assert "resumed:leaving failed in step 1 (SystemExit: 4)" in stderr


def test_what_the_function_prints_is_not_in_the_json(run):
    code, stdout, stderr = run("resumed:talking", *SMALL, "--json")
    assert code == 0
    assert json.loads(stdout)["nit"] == 20
    assert stderr.count("hello") == 202
    assert "module read" in stderr


@pytest.mark.parametrize("damage", ["empty", "half", "history", "other"])
def test_a_damaged_state_is_one_line(run, damage):
    assert run("resumed:misfit", *SMALL)[0] == 0
    path = Path("gs-poweropt-run/state.npz")
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "half":
        path.write_bytes(path.read_bytes()[:500])
    else:
        with np.load(path) as file:
            arrays = dict(file)
        arrays |= {"history": arrays["history"][:3]} if damage == "history" else {"mean": np.zeros(3)}
        np.savez(path, **arrays)
    code, _, stderr = run("resumed:misfit", *SMALL)
    assert code == 2
    assert stderr.count("\n") == 1
    assert "pass --fresh to begin anew" in stderr


def test_a_module_that_fails_is_one_line_with_the_cause(run):
    for name, text, cause in (
        ("boom", "raise RuntimeError('import boom')", "RuntimeError: import boom"),
        ("syntax", "def f(x:", "SyntaxError"),
        ("leaves", "raise SystemExit(4)", "SystemExit: 4"),
    ):
        Path(f"{name}.py").write_text(text)
        code, _, stderr = run(f"{name}:f", *SMALL)
        assert code == 2
        assert f"objective {name}:f cannot be imported ({cause}" in stderr
        assert stderr.count("\n") == 1


def test_files_without_a_vector_are_refused_in_one_line(run):
    np.save("number.npy", 3.0)
    np.save("matrix.npy", np.ones((2, 2)))
    np.save("objects.npy", np.array([None]), allow_pickle=True)
    Path("none.npy").write_bytes(b"")
    Path("matrix.txt").write_text("1 2\n3 4\n")
    for name in ("number.npy", "matrix.npy", "objects.npy", "none.npy", "matrix.txt"):
        code, _, stderr = run("resumed:misfit", "--x0", name)
        assert code == 2
        assert f"--x0 {name} holds" in stderr
        assert stderr.count("\n") == 1
    Path("one.txt").write_text("3\n")
    assert run("resumed:misfit", *SMALL, "--x0", "one.txt")[0] == 0


def test_a_wide_sigma_is_said_at_once_and_in_the_report(run):
    code, _, stderr = run("resumed:misfit", *SMALL, "--x0=0.5,0.5", "--bounds", "0:0.8")
    assert code == 0
    assert stderr.startswith("warning: sigma * x_scale is 0.5 in variable 0, whose bounds are 0.8 apart")
    assert "0.8 apart" in read()["warnings"][0]
