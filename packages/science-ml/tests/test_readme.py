"""The README's examples, run as they stand and in their order."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.slow
def test_the_examples_of_the_readme_run(tmp_path):
    blocks = re.findall(r"```(python|sh|)\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    python = "\n".join(code for kind, code in blocks if kind == "python")
    shell = [line for kind, code in blocks if kind == "sh" for line in code.splitlines()]
    (command,) = [shlex.split(line)[1:] for line in shell if line.startswith("hexad science-ml permucate")]
    (sample,) = [shlex.split(line)[1:] for line in shell if line.startswith("hexad science-ml avgflow")]
    subprocess.run([sys.executable, "-c", python], cwd=tmp_path, check=True)
    done = subprocess.run(
        [sys.executable, "-m", "hexad.core.cli", *command],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    printed = next(code for kind, code in blocks if kind == "")
    # Names in their order; digits may differ by the last place between machines.
    names = [line.split()[1] for line in printed.splitlines()[1:]]
    assert [line.split()[1] for line in done.stdout.splitlines()[1 : len(names) + 1]] == names
    subprocess.run([sys.executable, "-m", "hexad.core.cli", *sample], cwd=tmp_path, check=True)
    records = (tmp_path / "conformers.sdf").read_text(encoding="utf-8").count("$$$$")
    assert 5 <= records <= 10, "of the achiral molecule all five, of the chiral one those that are right"
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert {"trial.csv", "ranking.png", "permucate-report/importances.csv"} <= written
    assert not [line for line in shell if not line.startswith(("hexad ", "pip install "))]
