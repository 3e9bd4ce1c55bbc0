"""The builder of native code: what it caches, how it fails, and that it never takes the process with it."""

import ctypes
import logging
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from hexad.core.files import cache_folder
from hexad.kernels import native
from hexad.kernels.native import NativeLibrary

FUNCTIONS = {"answer": (ctypes.c_int32, (ctypes.c_int32,))}

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "answer.h").write_text("#pragma once\nconstexpr int kBase = 40;\n")
    (folder / "answer.cpp").write_text(
        '#include "answer.h"\n'
        'extern "C" int answer(int x) {\n'
        "  int sum = 0;\n"
        "#pragma omp parallel for reduction(+ : sum)\n"
        "  for (int i = 0; i < x; ++i) sum += 1;\n"
        "  return kBase + sum;\n"
        "}\n"
    )
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEXAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HEXAD_NATIVE", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path / "cache" / "native"


def compiler_script(path: Path, body: str) -> Path:
    """A compiler that answers --version, appends its arguments to `path`.log and then does `body`."""
    path.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = --version ]; then echo "{path.name} 1.0"; exit 0; fi\n'
        f'echo "$@" >> {path}.log\n'
        f"{body}\n"
    )
    path.chmod(0o755)
    return path


def log_lines(path: Path) -> list[str]:
    log = path.with_name(path.name + ".log")
    return log.read_text().splitlines() if log.exists() else []


def in_process(folder: Path, **environment: str) -> subprocess.Popen[str]:
    code = f"""
        import ctypes
        from pathlib import Path
        from hexad.kernels.native import NativeLibrary
        library = NativeLibrary(
            "answer", Path({str(folder)!r}), {{"answer": (ctypes.c_int32, (ctypes.c_int32,))}}
        )
        loaded = library.load()
        print(loaded.answer(2) if loaded else library.status())
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


@needs_compiler
def test_builds_loads_and_finds_it_again(folder: Path, cache: Path) -> None:
    first = NativeLibrary("answer", folder, FUNCTIONS)
    loaded = first.load()
    assert loaded is not None
    assert loaded.answer(2) == 42
    (built,) = cache.glob("*.so")
    assert built.name in first.status()
    stamp = built.stat().st_mtime_ns
    again = NativeLibrary("answer", folder, FUNCTIONS)
    assert again.load() is not None
    assert [path.stat().st_mtime_ns for path in cache.glob("*.so")] == [stamp]
    assert cache.stat().st_mode & 0o077 == 0  # nobody else may put code there


@needs_compiler
def test_a_changed_header_is_another_library(folder: Path, cache: Path) -> None:
    assert NativeLibrary("answer", folder, FUNCTIONS).load() is not None
    (folder / "answer.h").write_text("#pragma once\nconstexpr int kBase = 50;\n")
    loaded = NativeLibrary("answer", folder, FUNCTIONS).load()
    assert loaded is not None
    assert loaded.answer(2) == 52
    assert len(list(cache.glob("*.so"))) == 2


@needs_compiler
def test_a_changed_shared_header_is_another_library(
    folder: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setattr(native, "_SHARED_HEADERS", shared)
    (folder / "answer.h").write_text('#pragma once\n#include "base.h"\n')
    for base in (40, 50):
        (shared / "base.h").write_text(f"constexpr int kBase = {base};\n")
        loaded = NativeLibrary("answer", folder, FUNCTIONS).load()
        assert loaded is not None
        assert loaded.answer(2) == base + 2


def test_switched_off(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HEXAD_NATIVE", "0")
    library = NativeLibrary("answer", folder, FUNCTIONS)
    with caplog.at_level(logging.INFO, "hexad.kernels"):
        assert library.load() is None
    assert len(caplog.records) == 1
    assert "HEXAD_NATIVE=0" in library.status()
    assert not cache.exists()


def test_no_compiler_is_one_line_of_the_log(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    library = NativeLibrary("answer", folder, FUNCTIONS)
    with caplog.at_level(logging.WARNING, "hexad.kernels"):
        assert library.load() is None
        assert library.load() is None
    assert len(caplog.records) == 1
    assert "no C++ compiler was found" in caplog.text
    assert "no C++ compiler was found" in library.status()


def test_broken_compiler_is_asked_once(
    folder: Path,
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = compiler_script(tmp_path / "broken", 'echo "error: out of luck" >&2; exit 1')
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("PATH", "/nowhere")
    with caplog.at_level(logging.WARNING, "hexad.kernels"):
        assert NativeLibrary("answer", folder, FUNCTIONS).load() is None
    assert len(caplog.records) == 1
    assert "error: out of luck" in caplog.text
    asked = len(log_lines(broken))
    assert asked > 0
    library = NativeLibrary("answer", folder, FUNCTIONS)
    assert library.load() is None
    assert len(log_lines(broken)) == asked
    (failed,) = cache.glob("*.failed")
    assert "error: out of luck" in library.status()  # the cause is remembered, not only that there was one
    assert f"delete {failed} to try again" in library.status()
    failed.unlink()
    assert NativeLibrary("answer", folder, FUNCTIONS).load() is None
    assert len(log_lines(broken)) == 2 * asked
    (folder / "answer.h").write_text("#pragma once\nconstexpr int kBase = 60;\n")
    assert NativeLibrary("answer", folder, FUNCTIONS).load() is None
    assert len(log_lines(broken)) > asked
    assert not list(cache.glob("*.so"))


@needs_compiler
def test_the_next_compiler_serves_where_the_first_is_broken(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(compiler_script(tmp_path / "broken", "exit 1")))
    library = NativeLibrary("answer", folder, FUNCTIONS)
    loaded = library.load()
    assert loaded is not None
    assert loaded.answer(2) == 42


@needs_compiler
@pytest.mark.parametrize("refused", [("-march=native", "-mcpu=native"), ("-fopenmp",)])
def test_does_without_a_flag_that_the_compiler_refuses(
    refused: tuple[str, ...], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = "".join(f'for a in "$@"; do [ "$a" = {flag} ] && exit 1; done\n' for flag in refused)
    script = compiler_script(tmp_path / "choosy", f'{tests}exec {shutil.which("g++")} "$@"')
    monkeypatch.setenv("CXX", str(script))
    loaded = NativeLibrary("answer", folder, FUNCTIONS).load()
    assert loaded is not None
    assert loaded.answer(2) == 42
    (compiled,) = [line for line in log_lines(script) if " -c " in line]
    assert not set(refused) & set(compiled.split())
    assert ("-fopenmp" in compiled) == ("-fopenmp" not in refused)


def test_cache_that_cannot_be_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # A file where the folder should be fails for root too, whom permissions do not stop.
    (tmp_path / "file").write_text("")
    places = [tmp_path / "file"]
    if os.geteuid() != 0:
        (tmp_path / "readonly").mkdir(mode=0o500)
        places.append(tmp_path / "readonly")
    monkeypatch.setenv("CXX", str(compiler_script(tmp_path / "never", "exit 1")))
    for place in places:
        caplog.clear()
        monkeypatch.setenv("HEXAD_CACHE", str(place))
        with caplog.at_level(logging.WARNING, "hexad.kernels"):
            library = NativeLibrary("answer", folder, FUNCTIONS)
            assert library.load() is None
        assert len(caplog.records) == 1
        assert "cannot be written" in library.status()
    assert not log_lines(tmp_path / "never")


@needs_compiler
def test_cache_that_others_may_write_to_is_not_trusted(folder: Path, cache: Path) -> None:
    assert in_process(folder).communicate()[0].strip() == "42"
    for mode in (0o777, 0o770, 0o702):
        cache.chmod(mode)
        library = NativeLibrary("answer", folder, FUNCTIONS)
        assert library.load() is None
        assert "other users" in library.status()


@needs_compiler
@pytest.mark.parametrize("damage", ["truncated", "empty", "overwritten"])
def test_damaged_file_is_built_again(damage: str, folder: Path, cache: Path) -> None:
    # Built by another process: a file that this one had mapped must not be cut under its feet.
    assert in_process(folder).communicate()[0].strip() == "42"
    (built,) = cache.glob("*.so")
    whole = built.read_bytes()
    built.write_bytes({"truncated": whole[:4096], "empty": b"", "overwritten": b"x" * len(whole)}[damage])
    process = in_process(folder)
    assert process.communicate()[0].strip() == "42"
    assert process.returncode == 0
    (rebuilt,) = cache.glob("*.so")
    assert rebuilt.stat().st_size == len(whole)


@needs_compiler
def test_processes_that_start_together_build_once(folder: Path, tmp_path: Path, cache: Path) -> None:
    slow = compiler_script(tmp_path / "slow", f'sleep 0.3; exec {shutil.which("g++")} "$@"')
    processes = [in_process(folder, CXX=str(slow)) for _ in range(3)]
    assert [process.communicate()[0].strip() for process in processes] == ["42"] * 3
    assert len([line for line in log_lines(slow) if " -c " in line]) == 1
    assert len(list(cache.glob("*.so"))) == 1
    assert not [path for path in cache.iterdir() if path.is_dir()]  # no scratch is left behind


@needs_compiler
def test_scratch_of_killed_builds_is_swept(folder: Path, cache: Path) -> None:
    old, young = cache / "answer-0123456789abcdef-old", cache / "answer-0123456789abcdef-young"
    other = cache / "question-0123456789abcdef-old"
    for scratch in (old, young, other):
        scratch.mkdir(mode=0o700, parents=True)
        (scratch / "half.o").write_bytes(b"x")
    cache.chmod(0o700)
    hours_ago = time.time() - 2 * 3600
    os.utime(old, (hours_ago, hours_ago))
    os.utime(other, (hours_ago, hours_ago))
    assert NativeLibrary("answer", folder, FUNCTIONS).load() is not None
    # The young one may be of a process that builds another version now; the other library's is its own.
    assert [path.name for path in sorted(cache.iterdir()) if path.is_dir()] == [young.name, other.name]


@needs_compiler
def test_library_without_a_declared_function(folder: Path) -> None:
    library = NativeLibrary("answer", folder, {"question": (None, ())})
    assert library.load() is None
    assert "question" in library.status()


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEXAD_CACHE", str(tmp_path / "own"))
    assert cache_folder(native.CACHE) == tmp_path / "own" / "native"
    monkeypatch.delenv("HEXAD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder(native.CACHE) == tmp_path / "xdg" / "hexad" / "native"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HEXAD_CACHE", "")  # empty is not given
    for ignored in ("", "relative/folder"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_folder(native.CACHE) == tmp_path / ".cache" / "hexad" / "native"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder(native.CACHE) == tmp_path / ".cache" / "hexad" / "native"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEXAD_CACHE", "here")
    assert cache_folder(native.CACHE) == tmp_path / "here" / "native"


def test_without_a_home_there_is_a_reason_and_no_crash(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As for a container's user whom no passwd file knows: Path.expanduser raises RuntimeError."""

    def nowhere(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("HEXAD_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", nowhere)
    library = NativeLibrary("answer", folder, FUNCTIONS)
    with caplog.at_level(logging.WARNING, "hexad.kernels"):
        assert library.load() is None
    assert len(caplog.records) == 1
    assert "set HEXAD_CACHE" in library.status()


def test_a_compiler_that_speaks_another_encoding_is_no_crash(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "printf 'error: d\\351faut\\n' >&2; exit 1"  # Latin-1, which is no UTF-8
    broken = compiler_script(tmp_path / "broken", body)
    monkeypatch.setattr(native, "_compilers", lambda: [native._Compiler((str(broken),), "broken 1.0")])
    library = NativeLibrary("answer", folder, FUNCTIONS)
    assert library.load() is None
    assert "error: d\ufffdfaut" in library.status()


@needs_compiler
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
def test_shares_the_openmp_runtime_of_torch(folder: Path) -> None:
    # A process of its own: other libraries of the suite bring runtimes of theirs. A library of one loop is
    # built as a large one is, and is there in a second.
    code = f"""
        import ctypes
        from pathlib import Path
        import torch
        from hexad.kernels.native import NativeLibrary
        torch.ones(100_000).sum()
        functions = {{"answer": (ctypes.c_int32, (ctypes.c_int32,))}}
        library = NativeLibrary("answer", Path({str(folder)!r}), functions).load()
        assert library is not None and library.answer(100_000) == 100_040
        maps = open("/proc/self/maps").read().splitlines()
        print(len({{line.split()[-1] for line in maps if "libgomp" in line}}))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"  # two runtimes would keep two teams of threads busy on the same cores


@pytest.mark.parametrize("value", ["   ", '"no end', "/bin/false"])
def test_a_malformed_cxx_is_passed_over(value, monkeypatch):
    from hexad.kernels.native import _compilers

    monkeypatch.delenv("CXX", raising=False)
    plain = [compiler.version for compiler in _compilers()]
    monkeypatch.setenv("CXX", value)
    assert [compiler.version for compiler in _compilers()][-len(plain) or None :] == plain
