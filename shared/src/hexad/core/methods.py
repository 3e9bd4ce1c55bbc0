"""Methods and how the installed ones are found.

A domain package announces each method by an entry point in the group `hexad.methods` whose value is the
`METHOD` of the method's light `method.py`. Nothing heavy is imported until a study or a command is asked for.
"""

import functools
import importlib
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from hexad.core.errors import HexadError, InputError, MissingExtraError
from hexad.core.validation import near_miss

if TYPE_CHECKING:
    from hexad.core.studies import Study

GROUP = "hexad.methods"


@dataclass(frozen=True)
class Method:
    """What is known of a method without importing it.

    Args:
        name: its name on the command line, in kebab case.
        title: the method in a few words.
        paper: authors, title and venue, with the arXiv number where there is one.
        claim: the paper's claim in one sentence, the one that the study tests.
        tags: words to search by.
        study: `"module:attribute"` of its `Study`, or None.
        commands: `"module:attribute"` of its Typer app, or None.
    """

    name: str
    title: str
    paper: str
    claim: str
    tags: tuple[str, ...] = ()
    study: str | None = None
    commands: str | None = None

    @property
    def domain(self) -> str:
        """The domain package it lives in, such as `"llm-efficiency"`."""
        return domain_of(self.study or self.commands or "")

    def load_study(self) -> "Study":
        """Import and return the study.

        Raises:
            InputError: the method has none.
            MissingExtraError: the study needs packages that are not installed.
        """
        if self.study is None:
            raise InputError(f"method {self.name!r} has no study; `hexad list` marks those that do")
        return load_object(self.study, extra=f"hexad-{self.domain}[study]")

    def load_commands(self) -> Any:
        """Import and return the Typer app of the method's own commands."""
        if self.commands is None:
            raise InputError(f"method {self.name!r} has no commands of its own")
        return load_object(self.commands, extra=f"hexad-{self.domain}")


def domain_of(reference: str) -> str:
    """The domain of a reference such as `"hexad.llm_efficiency.quest.study:STUDY"`: `"llm-efficiency"`."""
    parts = reference.split(":")[0].split(".")
    return parts[1].replace("_", "-") if len(parts) > 1 and parts[0] == "hexad" else ""


def load_object(reference: str, extra: str) -> Any:
    """Import `"module:attribute"`; a missing third-party package becomes a `MissingExtraError`."""
    module, _, attribute = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("hexad"):
            raise
        raise MissingExtraError(
            f'{module} needs {error.name!r}, which is not installed; run: pip install "{extra}"'
        ) from error


@functools.cache
def methods() -> dict[str, Method]:
    """The installed methods by name, in alphabetical order.

    Raises:
        HexadError: two packages announce the same name, or an entry point does not load.
    """
    found: dict[str, Method] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            method = point.load()
        except Exception as error:
            raise HexadError(
                f"entry point {point.name!r} = {point.value!r} does not load ({error}); "
                "reinstall the package that announces it"
            ) from error
        if method.name in found:
            raise HexadError(f"two installed packages announce a method {method.name!r}; remove one")
        found[method.name] = method
    return found


def get_method(name: str) -> Method:
    """The installed method of that name, or an `InputError` with the nearest name."""
    known = methods()
    key = name.lower().replace("_", "-")
    if key not in known:
        raise InputError(f"no installed method is called {name!r}; {near_miss(name, known)}")
    return known[key]


def domains() -> dict[str, list[Method]]:
    """The installed domains that hold methods, each with its methods."""
    found: dict[str, list[Method]] = {}
    for method in methods().values():
        found.setdefault(method.domain, []).append(method)
    return dict(sorted(found.items()))
