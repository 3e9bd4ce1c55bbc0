"""What the tests of every method here need: the package's commands, run in this process."""

import pytest


@pytest.fixture
def llm_efficiency(hexad_code, capsys):
    """Run `hexad llm-efficiency ...`; gives (exit code, stdout, stderr)."""

    def run(*words):
        code = hexad_code("llm-efficiency", *words)
        return code, *capsys.readouterr()

    return run
