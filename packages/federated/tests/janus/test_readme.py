"""The part of the README about janus, run as it stands and in its order."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.slow
def test_the_examples_of_the_readme_run(tmp_path):
    text = README.read_text(encoding="utf-8")
    section = text[text.index("\n## janus") + 1 :]
    section = section[: section.find("\n## ") if "\n## " in section else None]
    for kind, code in re.findall(r"```(python|sh)\n(.*?)```", section, re.DOTALL):
        if kind == "python":
            subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
            continue
        for line in code.splitlines():
            assert line.startswith("hexad federated janus ")
            words = shlex.split(line)[1:]
            subprocess.run([sys.executable, "-m", "hexad.core.cli", *words], cwd=tmp_path, check=True)
    with np.load(tmp_path / "mean.npz") as mean:
        assert mean["weights"].shape == (2, 2)
        np.testing.assert_allclose(mean["weights"], 0.25 * 0.1 + 0.25 * 0.2 + 0.5 * 0.6, atol=1e-4)
