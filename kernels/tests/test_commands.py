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
from hexad.kernels.selective_scan import benchmark as selective_scan
from hexad.kernels.sparse_attention import benchmark


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


# What serves on a CPU where there is no native code.
WITHOUT_NATIVE = {
    "sparse_attention": "gather",
    "hadamard_transform": "torch",
    "low_bit_linear": "torch",
    "selective_scan": "torch",
}


def test_info_says_which_path_serves_and_why_others_cannot():
    found = json.loads(run("info", "--json").stdout)
    shown = run("info").stdout
    assert set(found["operations"]) == set(WITHOUT_NATIVE)
    for name, operation in found["operations"].items():
        reasons = operation["reasons_against"]
        assert reasons[operation["serves"]] is None
        assert operation["serves"] == ("native" if reasons["native"] is None else WITHOUT_NATIVE[name])
        assert reasons["triton"]  # there is no GPU on a CPU
        assert f"{name}: served by {operation['serves']} on this CPU" in shown


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
    for name, operation in json.loads(done.stdout)["operations"].items():
        assert operation["serves"] == WITHOUT_NATIVE[name]
        assert "HEXAD_NATIVE" in operation["reasons_against"]["native"]


def test_bench_measures_every_path_beside_dense_attention():
    options = ("--lengths", 512, "--dtypes", "float32", "--rounds", 1, "--no-flex", "--json")
    done = run("bench", "sparse_attention", *options)
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


def test_bench_measures_the_transform_beside_one_product():
    done = run("bench", "hadamard_transform", "--lengths", 3, "--dtypes", "float32", "--rounds", 1, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    rows = report["operations"]["hadamard_transform"]["rows"]
    assert {row["path"] for row in rows} >= {"torch", "steps"}
    assert {row["block"] for row in rows} == {128, 4096}
    assert all(row["error"] < 1e-6 for row in rows)
    assert "| float32 | 3 | 128 |" in report["markdown"]


def test_bench_measures_the_layer_beside_those_of_torch():
    options = ("--lengths", "1,2", "--formats", "W4A8,WternaryA16", "--shapes", "256x512", "--rounds", 1)
    done = run("bench", "low_bit_linear", *options, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    rows = report["operations"]["low_bit_linear"]["rows"]
    assert {row["layer"] for row in rows} >= {"W4A8", "WternaryA16", "float32", "bfloat16"}
    assert {row["length"] for row in rows} == {1, 2}
    for row in rows:
        if row["error"] is not None:
            assert row["error"] < 1e-6
    # Four bits a weight, a scale and a sum a row, sixteen levels.
    (packed,) = {row["weight_bytes"] for row in rows if row["layer"] == "W4A8"}
    assert packed == 256 * 512 // 2 + 8 * 256 + 2 * 16
    table = run("bench", "low_bit_linear", *options).stdout
    assert "Weights 256x512" in table
    assert "…" not in table  # nothing is cut off


def test_bench_measures_the_scan_beside_mambapy():
    options = ("--lengths", 3, "--dtypes", "float32", "--rounds", 1, "--json")
    done = run("bench", "selective_scan", *options)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)["operations"]["selective_scan"]
    rows = {row["path"]: row for row in report["rows"]}
    assert rows.keys() >= {"torch", "mambapy"}
    assert rows["mambapy"]["speedup"] == 1
    for row in rows.values():
        assert row["error"] < 1e-5
        if os.path.exists("/proc/self/clear_refs"):
            # The output and the gradients of u and delta are made, 98 kB each.
            assert row["megabytes"] > 0.2
    assert "| float32 | 32 | 256 | 3 | 16 |" in report["markdown"]


def test_bench_of_the_scan_takes_shapes_and_dtypes():
    config = selective_scan.BenchmarkConfig(
        (), ("1x20x18x4",), ("float32", "bfloat16"), rounds=1, memory=False
    )
    rows, _ = selective_scan.measure(config)
    assert {(row.dtype, row.path) for row in rows} >= {("float32", "mambapy"), ("bfloat16", "torch")}
    for row in rows:
        assert row.error < (2e-2 if row.dtype == "bfloat16" else 1e-5)
        assert (row.speedup is None) == (row.dtype == "bfloat16")
    assert selective_scan.tables(rows)[0].rows[0][:5] == ["float32", "1", "20", "18", "4"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sparse_atention",), "did you mean 'sparse_attention'"),
        (("--lengths", "many"), "whole numbers"),
        (("--lengths", "64"), "at least 128"),
        (("hadamard_transform", "--lengths", "0"), "lengths must be at least 1"),
        (("hadamard_transform", "--no-flex"), "hadamard_transform has no option --flex"),
        (("low_bit_linear", "--lengths", "0"), "lengths must be at least 1"),
        (("low_bit_linear", "--formats", "W4"), "formats must be like W4A8"),
        (("low_bit_linear", "--formats", "W9A8"), "formats must be like W4A8"),
        (("low_bit_linear", "--shapes", "4096"), "shapes must be rows x columns"),
        (("low_bit_linear", "--shapes", "64x100"), "with a multiple of 128 columns, got '64x100'"),
        (("selective_scan", "--lengths", "0"), "lengths must be at least 1"),
        (("selective_scan", "--shapes", "32x256"), "shapes must be batch x channels x steps x states"),
        (("selective_scan", "--dtypes", "float64"), "dtypes must be among"),
        (("--dtypes", "float8"), "dtypes must be among"),
        (("--rounds", "0"), "rounds must be at least 1"),
    ],
)
def test_mistakes_are_named(arguments, message):
    error = run("bench", *arguments).exception
    assert isinstance(error, InputError)
    assert message in str(error)
