"""What the tests of every method here need: the command line, run in this process, and a study's results."""

import json
import sys

import pytest

from hexad.core import cli


def run_hexad(*words):
    """Run `hexad ...` and give its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hexad", *map(str, words)])
        try:
            cli.main()
        except SystemExit as stop:
            return stop.code or 0
    return 0


@pytest.fixture(scope="session")
def hexad_code():
    return run_hexad


@pytest.fixture
def llm_efficiency(capsys):
    """Run `hexad llm-efficiency ...`; gives (exit code, stdout, stderr)."""

    def run(*words):
        code = run_hexad("llm-efficiency", *words)
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="session")
def prove():
    """Run a study at its tiny size into a folder; gives the exit code."""

    def run(method, out, *more):
        return run_hexad("prove", method, "--preset", "tiny", "--out", out, "--json", *more)

    return run


@pytest.fixture(scope="session")
def measured():
    """What such a folder holds, by (arm, metric, case)."""

    def read(method, out):
        content = json.loads((out / method / "tiny" / "page.json").read_text())
        assert content["errors"] == {}
        return {(row["arm"], row["metric"], row["case"]): row["value"] for row in content["cases"]}

    return read
