"""Each package's wheel, alone in an empty environment: it installs, and `hexad` shows that package only.

Marked `wheels` because it installs torch several times; `.ci/run` runs it.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
UV = shutil.which("uv") or str(Path(sys.executable).parent / "uv")
DOMAINS = sorted(path.name for path in (ROOT / "packages").iterdir())
PACKAGES = ["hexad-core", "hexad-kernels", *(f"hexad-{name}" for name in DOMAINS)]

pytestmark = [pytest.mark.wheels, pytest.mark.timeout(1200)]


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def dist(tmp_path_factory):
    """Wheels and sdists of all members."""
    folder = tmp_path_factory.mktemp("dist")
    run(UV, "build", "--all-packages", "--out-dir", folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="session")
def locked(tmp_path_factory):
    """The versions of uv.lock as constraints, so that a release of the day does not decide the test."""
    file = tmp_path_factory.mktemp("locked") / "constraints.txt"
    out = run(
        *(UV, "export", "--locked", "--all-packages", "--all-extras", "--no-emit-workspace"),
        *("--no-hashes", "--no-annotate", "--no-header"),
        cwd=ROOT,
    )
    file.write_text(out)
    return file


def test_every_member_builds_a_wheel_and_an_sdist_with_its_data(dist):
    for name in PACKAGES:
        stem = name.replace("-", "_")
        (wheel,) = dist.glob(f"{stem}-*.whl")
        (sdist,) = dist.glob(f"{stem}-*.tar.gz")
        names = zipfile.ZipFile(wheel).namelist()
        assert "hexad/__init__.py" not in names
        assert any(entry.endswith("licenses/LICENSE") for entry in names)
        assert not any("tests/" in entry for entry in names)
        with tarfile.open(sdist) as archive:
            assert any(entry.endswith("/pyproject.toml") for entry in archive.getnames())
        if name == "hexad-kernels":
            assert any(entry.endswith(".cpp") for entry in names)
        if name == "hexad-core":
            assert "hexad/core/templates/study.html" in names


@pytest.mark.parametrize("package", PACKAGES)
def test_a_wheel_works_alone(package, dist, locked, tmp_path):
    venv = tmp_path / "venv"
    run(UV, "venv", "--python", sys.executable, venv)
    python, hexad = venv / "bin" / "python", venv / "bin" / "hexad"
    run(UV, "pip", "install", "--python", python, "--find-links", dist, "-c", locked, package)
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "HEXAD_NATIVE": "0"}
    listed = json.loads(run(hexad, "list", "--json", env=environment))
    domain = package.removeprefix("hexad-")
    assert {method["domain"] for method in listed} <= {domain}
    assert run(hexad, "--version", env=environment).startswith("hexad ")
    installed = {
        item["name"] for item in json.loads(run(UV, "pip", "list", "--python", python, "--format", "json"))
    }
    others = {f"hexad-{other}" for other in DOMAINS if other != domain}
    assert not installed & others
    if package in ("hexad-core", "hexad-generative-3d"):
        assert "torch" not in installed
    for method in listed:
        if method["has_commands"]:
            assert "Usage" in run(hexad, domain, method["name"], "--help", env=environment)
