"""Small folders of pictures, and the command line in this process."""

import sys

import numpy as np
import pytest
from PIL import Image

from hexad.core.cli import main


def draw(folder, count, seed):
    """Pictures of bright or dark noise, 16 x 16, in folders named after them."""
    for label, low in (("bright", 150), ("dark", 0)):
        (folder / label).mkdir(parents=True)
        rng = np.random.default_rng((seed, low))
        for number in range(count):
            pixels = rng.integers(low, low + 100, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{number:02}.png")


@pytest.fixture
def data(tmp_path):
    """A tree with train/ (12 of each class) and val/ (5 of each)."""
    draw(tmp_path / "data" / "train", 12, 0)
    draw(tmp_path / "data" / "val", 5, 1)
    return tmp_path / "data"


@pytest.fixture
def hexad(monkeypatch, capfd):
    """Call `hexad vision-robustness shufflemamba ...`: exit code, standard output, standard error."""

    def call(*arguments):
        line = ["hexad", "vision-robustness", "shufflemamba", *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", line)
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return call
