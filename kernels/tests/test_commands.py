"""`hexad kernels info` and `bench`, from the command line's own entry."""

import json
import os
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from hexad.core.errors import InputError
from hexad.kernels.commands import app
from hexad.kernels.sparse_attention import benchmark


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_info_says_which_path_serves_and_why_others_cannot():
    found = json.loads(run("info", "--json").stdout)
    operation = found["operations"]["sparse_attention"]
    reasons = operation["reasons_against"]
    assert reasons[operation["serves"]] is None
    assert operation["serves"] == ("native" if reasons["native"] is None else "gather")
    assert reasons["triton"]  # there is no GPU on a CPU
    assert operation["serves"] in run("info").stdout


def test_info_keeps_paths_whole(monkeypatch):
    """However narrow the terminal is: they are there to be copied."""
    reason = "g++ failed: no space left (tried before; delete /" + "deep/" * 40 + "x.failed to try again) [1]"
    monkeypatch.setattr(benchmark, "paths", lambda: {"gather": None, "native": reason})
    monkeypatch.setattr(benchmark, "serving", lambda: "gather")
    shown = run("info").stdout.splitlines()
    assert f"  native  cannot: {reason}" in shown
    assert "  gather  can serve" in shown


def test_native_code_switched_off_is_given_as_the_reason():
    # A process of its own: what is loaded once stays loaded.
    code = "from hexad.kernels.commands import app; app(['info', '--json'])"
    environment = {**os.environ, "HEXAD_NATIVE": "0"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    operation = json.loads(done.stdout)["operations"]["sparse_attention"]
    assert operation["serves"] == "gather"
    assert "HEXAD_NATIVE" in operation["reasons_against"]["native"]


def test_bench_measures_every_path_beside_dense_attention():
    done = run("bench", "--lengths", 512, "--dtypes", "float32", "--rounds", 1, "--no-flex", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    rows = report["operations"]["sparse_attention"]["rows"]
    assert {row["path"] for row in rows} >= {"gather"}
    for row in rows:
        # float32 paths keep float32's digits; INT8 scores lose about a percent.
        if row["mask"] == "random":
            assert row["error"] < (0.05 if "INT8" in row["path"] else 1e-5)
        assert row["speedup"] == pytest.approx(row["dense_milliseconds"] / row["milliseconds"], rel=1e-6)
    assert "| float32 | 512 |" in report["markdown"]
    last = report["markdown"].strip().splitlines()[-1]
    assert last.startswith(
        f"Measured {report['date']} by `hexad kernels bench`, the median of 1 rounds, 8 heads of"
    )
    assert f"{report['threads']} threads, on {report['environment']['processor']}" in last
    assert f"PyTorch {torch.__version__.split('+')[0]}" in last


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sparse_atention",), "did you mean 'sparse_attention'"),
        (("--lengths", "many"), "whole numbers"),
        (("--lengths", "64"), "at least 128"),
        (("--dtypes", "float8"), "dtypes must be among"),
        (("--rounds", "0"), "rounds must be at least 1"),
    ],
)
def test_mistakes_are_named(arguments, message):
    error = run("bench", *arguments).exception
    assert isinstance(error, InputError)
    assert message in str(error)
