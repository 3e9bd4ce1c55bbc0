"""The examples of the README's section on moe-laws, run as they stand and in their order."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.slow
def test_the_examples_of_the_readme_run(tmp_path):
    section = README.read_text(encoding="utf-8").split("\n## moe-laws\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```(python|sh|)\n(.*?)```", section, re.DOTALL)
    python = [code for kind, code in blocks if kind == "python"]
    shell = [line for kind, code in blocks if kind == "sh" for line in code.splitlines()]
    (printed,) = [code for kind, code in blocks if kind == ""]
    assert len(shell) == 3
    subprocess.run([sys.executable, "-c", python[0]], cwd=tmp_path, check=True)
    outputs = [
        subprocess.run(
            [sys.executable, "-m", "hexad.core.cli", *shlex.split(line)[1:]],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for line in shell
    ]
    table = [line.split() for line in outputs[0].splitlines()]
    assert table[: printed.count("\n")] == [line.split() for line in printed.splitlines()]
    assert "Train 16 experts" in outputs[0]
    assert {"runs.csv", "law.json", "law-residuals.png", "mine.png"} == {
        path.name for path in tmp_path.iterdir()
    }
    subprocess.run([sys.executable, "-c", "\n".join(python)], cwd=tmp_path, check=True)
