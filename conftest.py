"""What tests of several packages need: the command line in this process, and studies at their tiny size."""

import contextlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hexad.core import cli


def run_hexad(*words: object) -> int:
    """Run `hexad ...` in this process, which has loaded torch; gives the exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hexad", *map(str, words)])
        try:
            cli.main()
        except SystemExit as stop:
            return int(stop.code or 0)
    return 0


@pytest.fixture(scope="session")
def hexad_code() -> Callable[..., int]:
    """Run `hexad ...`; gives the exit code."""
    return run_hexad


@pytest.fixture(scope="session")
def prove() -> Callable[..., int]:
    """Run a study at its tiny size into a folder; gives the exit code."""

    def run(method: str, out: Path, *more: object) -> int:
        return run_hexad("prove", method, "--preset", "tiny", "--out", out, "--json", *more)

    return run


@pytest.fixture(scope="session")
def proof_of(
    prove: Callable[..., int], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Any, Path]]:
    """Run a study at its tiny size; gives what `--json` prints, and the folder of the results."""

    def run(method: str) -> tuple[Any, Path]:
        out = tmp_path_factory.mktemp("results")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            prove(method, out)
        return json.loads(printed.getvalue()), out

    return run


@pytest.fixture(scope="session")
def measured() -> Callable[[str, Path], dict[tuple[str, str, str], float]]:
    """What a folder of results at the tiny size holds, by (arm, metric, case)."""

    def read(method: str, out: Path) -> dict[tuple[str, str, str], float]:
        content = json.loads((out / method / "tiny" / "page.json").read_text())
        assert content["errors"] == {}
        return {(row["arm"], row["metric"], row["case"]): row["value"] for row in content["cases"]}

    return read
