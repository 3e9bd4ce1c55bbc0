"""What holds across packages: the layout, the entry points, the light start."""

import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = [ROOT / "shared", ROOT / "kernels", *sorted((ROOT / "packages").iterdir())]
METHODS = sorted(entry_points(group="hexad.methods"), key=lambda point: point.name)


def project(package: Path) -> dict:
    return tomllib.loads((package / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_a_package_is_complete(package):
    described = project(package)
    for name in ("README.md", "CHANGELOG.md", "LICENSE"):
        assert (package / name).read_text().strip(), name
    assert described["version"] in (package / "CHANGELOG.md").read_text()
    assert described["license"] == "Apache-2.0"
    owners = (ROOT / ".github" / "CODEOWNERS").read_text()
    assert f"/{package.relative_to(ROOT).as_posix()}/ " in owners
    # `hexad` is a namespace: a file here would hide the other packages.
    assert not (package / "src" / "hexad" / "__init__.py").exists()


@pytest.mark.parametrize("point", METHODS, ids=lambda point: point.name)
def test_a_method_has_all_its_rooms(point):
    method = point.load()
    assert method.name == point.name
    module = point.value.split(":")[0]
    folder = ROOT / "packages" / method.domain / "src" / Path(*module.split(".")).parent
    assert (folder / "__init__.py").is_file()
    assert (folder / "study.py").is_file()
    assert (ROOT / "packages" / method.domain / "tests" / folder.name / "test_study.py").is_file()
    assert (ROOT / "docs" / "pages" / "methods" / f"{method.name}.md").is_file()
    study = method.load_study()
    assert study.name == method.name
    assert set(study.presets) == {"tiny", "quick", "full"}
    assert study.presets["full"].seeds >= 3
    assert any(arm.role == "baseline" for arm in study.arms)
    assert method.commands is None or method.load_commands().registered_commands


@pytest.mark.parametrize("point", METHODS, ids=lambda point: point.name)
def test_a_methods_face_is_light(point):
    code = (
        f"import sys, {point.value.split(':')[0]}\n"
        "heavy = {'torch', 'numpy', 'scipy', 'PIL', 'polars', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["list"], ["list", "--json"], ["vision-robustness", "--help"]]
)
def test_the_command_line_starts_without_torch(arguments):
    code = (
        f"import sys; sys.argv = ['hexad', *{arguments!r}]\n"
        "from hexad.core.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "heavy = {'torch', 'numpy', 'scipy', 'PIL', 'polars', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_mistyped_command_is_one_line():
    hexad = Path(sys.executable).parent / "hexad"
    done = subprocess.run([hexad, "prove", "laionc"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: no installed method is called 'laionc'; did you mean 'laion-c'?\n"
