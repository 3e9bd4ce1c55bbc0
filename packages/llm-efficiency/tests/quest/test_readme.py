"""The examples of the README's section on quest, and of its page, run as they stand and in their order."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
PAGE = Path(__file__).parents[4] / "docs" / "pages" / "methods" / "quest.md"


def run(*command, folder):
    arguments = [sys.executable, *command]
    return subprocess.run(arguments, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_the_examples_of_the_readme_run(tmp_path):
    section = README.read_text(encoding="utf-8").split("\n## quest\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```(python|sh)\n(.*?)```", section, re.DOTALL)
    any_model, transformers_model = (code for kind, code in blocks if kind == "python")
    printed = run("-c", any_model, folder=tmp_path).split()
    assert float(printed[0]) < float(printed[2]), "it learned something"
    assert printed[-1] == "True"
    sums = [line.split() for line in run("-c", transformers_model, folder=tmp_path).splitlines()]
    assert [name for name, _ in sums] == ["trained", "packed"]
    assert float(sums[0][1]) == pytest.approx(float(sums[1][1]), abs=0.1)

    (tmp_path / "texts").mkdir()
    for place in range(3):
        (tmp_path / "texts" / f"{place}.txt").write_text("words of a text that repeats itself\n" * 500)
    lines = [line for kind, code in blocks if kind == "sh" for line in code.splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("hexad ")]
    assert [command[2] for command in commands] == ["train", "export", "eval"]
    for command in commands:
        printed = run("-m", "hexad.core.cli", *command, folder=tmp_path)
    assert "packed, 7 layers of 2 bits" in printed


@pytest.mark.slow
def test_the_examples_of_the_page_run(tmp_path):
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    printed = run("-c", "\n".join(code), folder=tmp_path)
    assert "model.layers.1.mlp.down_proj: 0.9" in printed
