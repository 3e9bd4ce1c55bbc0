"""Native code for CPUs: C++ sources that lie in the package, compiled by the system's compiler on first use.

A library is a folder of C++17 sources with a plain C interface (no headers of Python or torch, so that a
build takes seconds); headers that several of them need lie in the folder `include`. `NativeLibrary.load`
compiles the sources for the processor it runs on, with OpenMP, into a per-user cache and opens the result
with ctypes. Where that cannot be done it returns None, says why in one line of the log, and the caller serves
with torch instead.

The cache is `$HEXAD_CACHE/native`, else `$XDG_CACHE_HOME/hexad/native`, else `~/.cache/hexad/native`. The
name of a file holds a key of everything its code depends on (sources, compiler, flags, processor) and the
checksum of its bytes: a truncated file is found out before the process opens it. Processes that start
together build once.

Environment: `HEXAD_NATIVE=0` switches native code off, `CXX` names the compiler to try first.
"""

import contextlib
import ctypes
import hashlib
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hexad.core.errors import InputError
from hexad.core.files import cache_folder

logger = logging.getLogger("hexad.kernels")

CACHE = "native"
"""Part of the cache that built libraries have, see `hexad.core.files.cache_folder`."""

# No -ffast-math: it would let the compiler assume that there is no NaN. These two allow the reordering that
# matters (vector square roots, speculated arithmetic) and change no result.
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
_FOR_THIS_PROCESSOR = ("-march=native", "-mcpu=native")
_OPENMP = "-fopenmp"
_SHARED_HEADERS = Path(__file__).parent / "include"
_BUILD_SECONDS = 300
# A build that failed is not tried again by every process, only after this long or when anything has changed.
_RETRY_SECONDS = 24 * 3600
# No build takes as long, so a scratch folder of that age is of a process that was killed.
_SCRATCH_SECONDS = 3600


class _UnavailableError(Exception):
    """Native code cannot be had; the message says why."""


@dataclass(frozen=True)
class _Compiler:
    command: tuple[str, ...]
    version: str


class NativeLibrary:
    """A folder of C++ sources as a shared library, built when it is first loaded.

    Args:
        name: names the library in the cache and in the log.
        folder: holds the `.cpp` sources and the headers that they alone include.
        functions: for each C function its result type and its argument types, as ctypes knows them.
        architecture: compiler flags that choose the instructions; None compiles for this processor.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        functions: Mapping[str, tuple[Any, Sequence[Any]]],
        *,
        architecture: Sequence[str] | None = None,
    ) -> None:
        self._name = name
        self._folder = folder
        self._functions = dict(functions)
        self._architecture = None if architecture is None else tuple(architecture)
        self._guard = threading.Lock()
        self._library: ctypes.CDLL | None = None
        self._status: str | None = None

    def load(self) -> ctypes.CDLL | None:
        """The library with its functions declared, or None if it cannot be had here.

        The first call decides for the life of the process.
        """
        if self._status is None:
            with self._guard:
                if self._status is None:
                    self._library, self._status = self._find_or_build()
        return self._library

    def status(self) -> str:
        """One line: which file is loaded and how it was compiled, or why there is none. Loads the library."""
        self.load()
        assert self._status is not None
        return self._status

    def _find_or_build(self) -> tuple[ctypes.CDLL | None, str]:
        wish = os.environ.get("HEXAD_NATIVE", "1")
        if wish.lower() in ("0", "false", "off", "no"):
            logger.info("no native code for %s: switched off by HEXAD_NATIVE=%s", self._name, wish)
            return None, f"switched off by HEXAD_NATIVE={wish}"
        try:
            reasons = []
            for compiler in _compilers():
                try:
                    path = self._cached(compiler)
                    return self._open(path), f"{path.name}, built with {compiler.version}"
                except _UnavailableError as reason:
                    reasons.append(str(reason))
            raise _UnavailableError(
                "; ".join(dict.fromkeys(reasons)) or "no C++ compiler was found (CXX, g++, clang++, c++)"
            )
        except _UnavailableError as reason:
            logger.warning("no native code for %s: %s", self._name, reason)
            return None, str(reason)

    def _cached(self, compiler: _Compiler) -> Path:
        """The built library in the cache, building it if it is not there."""
        key = self._key(compiler)
        try:
            folder = cache_folder(CACHE)
        except InputError as error:
            raise _UnavailableError(str(error)) from None
        found = _sound_file(folder, f"{self._name}-{key}")
        if found is not None:
            return found
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_private(folder)
            with FileLock(folder / f"{self._name}-{key}.lock", timeout=_BUILD_SECONDS):
                found = _sound_file(folder, f"{self._name}-{key}")  # of a process that was faster
                return found or self._build(compiler, folder, f"{self._name}-{key}")
        except Timeout:
            raise _UnavailableError(
                f"another process has been building it in {folder} for too long"
            ) from None
        except OSError as error:
            raise _UnavailableError(
                f"the cache {folder} cannot be written ({error.strerror or error})"
            ) from None

    def _key(self, compiler: _Compiler) -> str:
        digest = hashlib.sha256()
        for part in (
            *compiler.command,
            compiler.version,
            *_FLAGS,
            *(self._architecture if self._architecture is not None else _FOR_THIS_PROCESSOR),
            _processor(),
        ):
            digest.update(part.encode() + b"\0")
        for path in (*sorted(self._folder.iterdir()), *sorted(_SHARED_HEADERS.iterdir())):
            if path.suffix in (".cpp", ".h"):
                digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        return digest.hexdigest()[:16]

    def _build(self, compiler: _Compiler, folder: Path, stem: str) -> Path:
        failed = folder / f"{stem}.failed"
        if failed.exists() and time.time() - failed.stat().st_mtime < _RETRY_SECONDS:
            reason = failed.read_text().strip()
            raise _UnavailableError(f"{reason} (tried before; delete {failed} to try again)")
        for old in folder.glob(f"{stem}-*.so"):
            logger.warning("%s is damaged and is built again", old)
            old.unlink()
        _sweep(folder, self._name)
        began = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix=f"{stem}-", dir=folder) as scratch:
            try:
                built = self._compile(compiler, Path(scratch))
            except _UnavailableError as reason:
                failed.write_text(f"{reason}\n")
                raise
            target = folder / f"{stem}-{_checksum(built)}.so"
            os.replace(built, target)
        failed.unlink(missing_ok=True)
        logger.info("built %s in %.1f s", target, time.perf_counter() - began)
        return target

    def _compile(self, compiler: _Compiler, scratch: Path) -> Path:
        architecture = self._architecture
        if architecture is None:
            accepted = (flag for flag in _FOR_THIS_PROCESSOR if _accepts(compiler, flag, scratch))
            architecture = tuple(flag for flag in (next(accepted, None),) if flag is not None)
        openmp = (_OPENMP,) if _accepts(compiler, _OPENMP, scratch) else ()
        flags = (*_FLAGS, *architecture, *openmp, "-I", str(_SHARED_HEADERS))
        sources = sorted(self._folder.glob("*.cpp"))
        objects = [scratch / f"{source.stem}.o" for source in sources]

        def compile_one(source: Path, target: Path) -> None:
            _run([*compiler.command, *flags, "-c", str(source), "-o", str(target)])

        with ThreadPoolExecutor(max_workers=min(len(sources), os.cpu_count() or 1)) as pool:
            list(pool.map(compile_one, sources, objects))
        library = scratch / "library.so"
        _run([*compiler.command, *flags, "-shared", *map(str, objects), "-o", str(library)])
        return library

    def _open(self, path: Path) -> ctypes.CDLL:
        try:
            library = ctypes.CDLL(str(path))
            for name, (result, arguments) in self._functions.items():
                function = getattr(library, name)
                function.restype = result
                function.argtypes = list(arguments)
        except (OSError, AttributeError) as error:
            raise _UnavailableError(f"{path} cannot be opened ({error})") from None
        return library


def _compilers() -> list[_Compiler]:
    """C++ compilers that answer, in the order in which to try them."""
    try:
        wanted = shlex.split(os.environ.get("CXX", ""))
    except ValueError:  # a quotation without its end: no compiler, so the next one is tried
        wanted = []
    found: dict[str, _Compiler] = {}
    for command in (wanted, ["g++"], ["clang++"], ["c++"]):
        if not command:
            continue
        path = shutil.which(command[0])
        if path is None:
            continue
        # g++ and c++ are often one program.
        version = _version(os.path.realpath(path))
        if version is not None:
            found.setdefault(version, _Compiler((path, *command[1:]), version))
    return list(found.values())


@cache
def _version(path: str) -> str | None:
    """First line of what the compiler says about itself."""
    try:
        told = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", timeout=30, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return told.strip().splitlines()[0] if told.strip() else None


@cache
def _processor() -> str:
    """What -march=native depends on: the machine's kind, model and features."""
    try:
        told = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.platform()}"
    lines = re.findall(r"^(?:model name|flags|Features|CPU part)\s*:\s*(.*)$", told, re.MULTILINE)
    return " ".join([platform.machine(), *dict.fromkeys(lines)])


def _accepts(compiler: _Compiler, flag: str, scratch: Path) -> bool:
    """Whether a small program compiles and links with `flag`."""
    source = scratch / "probe.cpp"
    source.write_text("int probe() { return 0; }\n")
    try:
        _run([*compiler.command, "-fPIC", "-shared", flag, str(source), "-o", str(scratch / "probe.so")])
    except _UnavailableError:
        return False
    return True


def _run(command: list[str]) -> None:
    try:
        subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_BUILD_SECONDS, check=True
        )
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or "").strip().splitlines()
        told = next((line for line in lines if "error" in line), lines[0] if lines else "no message")
        raise _UnavailableError(f"{command[0]} failed: {told}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise _UnavailableError(f"{command[0]} failed: {error}") from None


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]


def _sound_file(folder: Path, stem: str) -> Path | None:
    """The library of that stem with the bytes that were written, in a folder that only its user writes."""
    try:
        for path in sorted(folder.glob(f"{stem}-*.so")):
            if path.stem.rpartition("-")[2] == _checksum(path):
                _check_private(folder)
                return path
    except OSError:
        return None
    return None


def _sweep(folder: Path, name: str) -> None:
    """Remove the scratch folders of builds that were killed."""
    for path in folder.glob(f"{name}-*"):
        with contextlib.suppress(OSError):  # another process may be sweeping too
            if path.is_dir() and time.time() - path.stat().st_mtime > _SCRATCH_SECONDS:
                shutil.rmtree(path)


def _check_private(folder: Path) -> None:
    """Refuse to run code out of a folder that somebody else may write to."""
    if os.name != "posix":
        return
    status = folder.stat()
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o022:
        raise _UnavailableError(
            f"the cache {folder} can be written by other users; set HEXAD_CACHE to a private folder"
        )
