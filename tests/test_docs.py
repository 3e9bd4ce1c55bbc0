"""The documentation does what it says: its Python runs, its tables are those of the data."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hexad.core.files import cache_folder
from hexad.core.methods import methods

ROOT = Path(__file__).parent.parent
READMES = [
    ROOT / "README.md",
    ROOT / "shared" / "README.md",
    ROOT / "kernels" / "README.md",
    *sorted(ROOT.glob("packages/*/README.md")),
    *sorted(ROOT.glob("docs/pages/methods/*.md")),
    *ROOT.glob("docs/pages/kernels.md"),
]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page", [p for p in READMES if BLOCK.search(p.read_text())], ids=lambda p: str(p.relative_to(ROOT))
)
def test_the_python_of_a_page_runs_as_it_stands(page, tmp_path):
    """All blocks of a page run in order in one empty folder, as a reader pastes them."""
    code = "\n".join(BLOCK.findall(page.read_text()))
    # A home of its own, but the user's native code, which takes many seconds to build for every page.
    kept = {"HEXAD_CACHE": str(cache_folder("native").parent)}
    environment = {**os.environ, **kept, "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def build():
    """The module docs/build.py."""
    spec = importlib.util.spec_from_file_location("build", ROOT / "docs" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_benchmark_is_taken_over_from_its_json(build, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "DOCS", tmp_path)
    (tmp_path / "measured").mkdir()
    operations = {name: {"markdown": f"| {name} |\n", "rows": [1]} for name in ("first", "second")}
    (tmp_path / "bench.json").write_text(json.dumps({"threads": 2, "operations": operations}))
    build.measure(tmp_path / "bench.json")
    for name, operation in operations.items():
        page = json.loads((tmp_path / "measured" / f"kernels-{name}.json").read_text())
        assert page == {"threads": 2, "operations": {name: operation}, "markdown": f"| {name} |\n"}


def test_the_readmes_table_of_methods_is_that_of_the_data(build):
    assert (ROOT / "README.md").read_text() == build.readme_with_table(), (
        "run: uv run python docs/build.py --readme"
    )
    assert len(build.method_table("{}").splitlines()) == 2 + 38


def test_every_method_s_page_is_in_the_navigation():
    settings = tomllib.loads((ROOT / "docs" / "zensical.toml").read_text())["project"]["nav"]
    listed = {page for entry in settings for value in entry.values() if isinstance(value, list)
              for item in value for page in item.values()}  # fmt: skip
    pages = {f"methods/{path.name}" for path in ROOT.glob("docs/pages/methods/*.md")}
    assert pages <= listed, "add the page to `nav` in docs/zensical.toml"
    assert {f"methods/{name}.md" for name in methods()} <= pages
