"""What tests of every operation need: native code built for several processors, and Triton interpreted."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from hexad.kernels.native import NativeLibrary

BUILDS = {
    "native": None,
    "native without AMX": ("-march=native", "-mno-amx-tile"),
    "AVX-512 without byte permutations": ("-march=native", "-mno-amx-tile", "-mno-avx512vbmi"),
    "AVX2 with int8 dot products": ("-march=x86-64-v3", "-mavxvnni"),
    "x86-64-v3": ("-march=x86-64-v3",),
    "x86-64": ("-march=x86-64",),
}
NEEDED_FEATURES = {
    "native without AMX": {"amx_tile"},
    "AVX-512 without byte permutations": {"amx_tile", "avx512_vnni"},
    "AVX2 with int8 dot products": {"avx2", "fma", "avx_vnni"},
    "x86-64-v3": {"avx2", "fma"},
}


@cache
def _built(name: str, module: ModuleType, build: str) -> NativeLibrary:
    return NativeLibrary(name, module.SOURCES, module.FUNCTIONS, architecture=BUILDS[build])


@pytest.fixture
def use_build(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModuleType, str], None]:
    """Make an operation's `cpu` module serve with the build of that name, or skip the test."""

    def use(module: ModuleType, build: str) -> None:
        if shutil.which("g++") is None:
            pytest.skip("no g++ on this machine")
        if build != "native" and platform.machine() != "x86_64":
            pytest.skip("built for x86-64")
        features = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
        missing = NEEDED_FEATURES.get(build, set()) - set(features)
        if missing:
            pytest.skip(f"the processor has no {', '.join(sorted(missing))}")
        library = _built(module.__name__.split(".")[-2], module, build)
        assert library.load() is not None, library.status()
        monkeypatch.setattr(module, "library", library)

    return use


@pytest.fixture
def run_interpreted() -> Callable[[str], None]:
    """Run a test file in a process with TRITON_INTERPRET set: Triton asks for it when a kernel is defined."""

    def run(file: str) -> None:
        command = [sys.executable, "-m", "pytest", file, "-q", "-p", "no:cacheprovider", "-W", "ignore"]
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "passed" in done.stdout

    return run
