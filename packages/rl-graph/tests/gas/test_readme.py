"""The examples of gas in the README, run as they stand and in their order."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.slow
def test_the_examples_of_the_readme_run(tmp_path):
    section = README.read_text(encoding="utf-8").split("<!-- gas begins -->")[1].split("<!-- gas ends -->")[0]
    blocks = re.findall(r"```(python|sh)\n(.*?)```", section, re.DOTALL)
    python = "\n".join(code for kind, code in blocks if kind == "python")
    shell = [shlex.split(line) for kind, code in blocks if kind == "sh" for line in code.splitlines()]
    said = subprocess.run(
        [sys.executable, "-c", python], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout
    place, steps = re.search(r"at (-?[\d.]+) after (\d+) steps", said).groups()
    assert abs(float(place) - 9) < 0.6
    assert int(steps) < 250, "18 apart, at most 0.2 a step"
    success = []
    for line in shell:
        assert line[:3] == ["hexad", "rl-graph", "gas"]
        done = subprocess.run(
            [sys.executable, "-m", "hexad.core.cli", *line[1:]],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        )
        if line[3] == "evaluate":
            success.append(int(done.stdout.splitlines()[-1].split()[1].rstrip("%")))
    with_graph, without = success
    assert with_graph >= 80
    assert with_graph >= without + 30
    assert {"maze.png", "maze.gif", "medium.npz"} <= {path.name for path in tmp_path.iterdir()}
