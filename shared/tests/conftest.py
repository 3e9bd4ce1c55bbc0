import sys
from pathlib import Path

import pytest

# The toy study must be importable by spawned workers, as a domain package's studies are.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def toy_log(tmp_path, monkeypatch):
    """A file into which every trial of the toy study that really runs writes its name."""
    log = tmp_path / "ran.log"
    log.touch()
    monkeypatch.setenv("HEXAD_TOY_LOG", str(log))
    return lambda: log.read_text().split("\n")[:-1]
