"""Faces of packages that import what they offer only when it is asked for.

__getattr__, __dir__ = lazy_exports(__name__, {"PermuCATE": "estimator"})
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The module functions `__getattr__` and `__dir__` (PEP 562) of a package.

    Args:
        package: its `__name__`.
        homes: for each name that it offers the module that has it, below the package where it has no dot.
    """

    def getattribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        return getattr(import_module(home if "." in home else f"{package}.{home}"), name)

    return getattribute, lambda: sorted(homes)
