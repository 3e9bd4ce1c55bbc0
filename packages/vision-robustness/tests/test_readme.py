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
    blocks = re.findall(r"```(python|sh)\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    python = "\n".join(code for kind, code in blocks if kind == "python")
    shell = [line for kind, code in blocks if kind == "sh" for line in code.splitlines()]
    commands = [shlex.split(line)[1:] for line in shell if line.startswith("hexad vision-robustness")]
    assert [command[2] for command in commands] == [
        "apply", "preview", "evaluate", "train", "eval", "predict", "train", "predict",
    ]  # fmt: skip
    subprocess.run([sys.executable, "-c", python], cwd=tmp_path, check=True)
    for command in commands:
        subprocess.run([sys.executable, "-m", "hexad.core.cli", *command], cwd=tmp_path, check=True)
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert {"sheet.png", "out/manifest.json", "laion-c-report/report.csv"} <= written
    assert "out/mosaic/intensity_level_3/cat/chelsea_mosaic_3.JPEG" in written
    assert {"run/model.safetensors", "run/training.png", "names.csv"} <= written
    assert {"gravel-run/model.safetensors", "found/scores.csv", "found/heatmaps/scratch/1.png"} <= written
    unnamed = [line for line in shell if not line.startswith(("hexad ", "pip install "))]
    assert not unnamed
