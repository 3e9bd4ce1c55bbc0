"""The examples of the README on gs-poweropt, and of its page, run as they stand and in their order."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
PAGE = Path(__file__).parents[4] / "docs" / "pages" / "methods" / "gs-poweropt.md"


def run(*command, folder):
    arguments = [sys.executable, *command]
    return subprocess.run(arguments, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_the_examples_of_the_readme_run(tmp_path):
    section = README.read_text(encoding="utf-8").split("\n## gs-poweropt\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```(python|sh)\n(.*?)```", section, re.DOTALL)
    first, *rest = [code for kind, code in blocks if kind == "python"]
    lines = run("-c", first, folder=tmp_path).splitlines()
    mean = [float(number) for number in re.findall(r"-?\d+\.\d+", lines[0])[:2]]
    assert mean == pytest.approx([1, 1], abs=0.2)
    polished = [float(number) for number in re.findall(r"-?\d+\.\d*", lines[2])[:2]]
    assert polished == pytest.approx([1, 1], abs=1e-3)
    printed = run("-c", "\n".join([first, *rest]), folder=tmp_path).splitlines()
    error, best = map(float, printed[-1].split())
    assert best <= error < 0.2
    [command] = [
        shlex.split(line)[1:]
        for kind, code in blocks
        if kind == "sh"
        for line in code.splitlines()
        if line.startswith("hexad rl-graph")
    ]
    assert "sigma/sqrt(popsize)" in run("-m", "hexad.core.cli", *command, folder=tmp_path)
    assert json.loads((tmp_path / "rosen/result.json").read_text())["x"] == pytest.approx([1, 1], abs=1e-3)


@pytest.mark.slow
def test_the_page_shows_what_it_says(tmp_path):
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    rows = [
        line.replace("[", "").replace("]", "").split()
        for line in run("-c", code, folder=tmp_path).splitlines()
    ]
    one, _, four = ([float(number) for number in row[1:4]] for row in rows)
    assert max(one[:2]) > -0.3, "between the peaks"
    assert max(four[:2]) < -0.3, "at the global one"
    assert four[2] < 1.7 < one[2]
