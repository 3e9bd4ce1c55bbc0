"""Where a number was measured: versions, commit, processor, threads."""

import functools
import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import Any


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return name[1].strip() if name else platform.machine()


def cores() -> int:
    """The cores this process may use (not those the machine has)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _threads() -> int:
    """OpenMP's threads: OMP_NUM_THREADS may list one number for each level of nesting."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdigit() else cores()


def _commit() -> str:
    """The commit of the checkout that this package runs from, `+` where it is changed; empty if installed."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()

    try:
        if not git("ls-files", Path(__file__).name):
            return ""
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _versions() -> dict[str, str]:
    """Versions of the installed Hexad packages and of what they ask for directly."""
    found: dict[str, str] = {}
    for dist in distributions():
        name = dist.metadata["Name"]
        if not (name or "").startswith("hexad-"):
            continue
        found[name] = dist.version
        for requirement in dist.requires or ():
            needed = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
            try:
                found[needed] = distribution(needed).version
            except PackageNotFoundError:
                continue
    return dict(sorted(found.items()))


@functools.cache
def environment() -> dict[str, Any]:
    """This process's surroundings as JSON values, gathered once."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": cores(),
        "threads": _threads(),
        "commit": _commit(),
        "packages": _versions(),
    }
