"""What the JSON of a law holds, checked before a law is made of it."""

import json
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from hexad.core.errors import InputError
from hexad.llm_efficiency.moe_laws.ranges import Ranges

PARTS = ("law", "params", "ranges")
MEND = "`moe-laws fit` writes one"


def law_parts(text: str) -> tuple[str, dict[str, Any], Ranges | None]:
    """The kind of law, its coefficients and where it was fitted.

    Raises:
        InputError: no JSON, other parts than `PARTS`, or parts of another kind.
    """
    try:
        content = json.loads(text.removeprefix("\ufeff"))  # editors on Windows put a mark before the text
    except (ValueError, RecursionError) as error:
        raise InputError(f"this is no law, since it is no JSON ({error}); {MEND}") from None
    _check_names("a law", content, required=PARTS[:2], known=PARTS)
    kind, params, ranges = content["law"], content["params"], content.get("ranges")
    if not isinstance(kind, str):
        raise InputError(f"law is {kind!r}; it must be a name, such as 'joint'")
    if not isinstance(params, dict):
        raise InputError(f"params of the {kind} law is {params!r}; it must be an object of coefficients")
    if ranges is None:
        return kind, params, None
    names = [item.name for item in fields(Ranges)]
    _check_names("ranges", ranges, required=names[:-1], known=names)
    return kind, params, Ranges(**ranges)


def check_coefficients(kind: str, params: dict[str, Any], names: Iterable[str]) -> None:
    """Refuse coefficients other than `names`: defaults, the paper's, would stand for those that lack."""
    _check_names(f"the params of a {kind} law", params, required=names, known=names)


def _check_names(what: str, content: Any, required: Iterable[str], known: Iterable[str]) -> None:
    if not isinstance(content, dict):
        raise InputError(f"{what} must be a JSON object with {', '.join(required)}, not {content!r}")
    missing = [name for name in required if name not in content]
    if missing:
        raise InputError(f"{what} must have {', '.join(required)}; {', '.join(missing)} is missing; {MEND}")
    unknown = [name for name in content if name not in set(known)]
    if unknown:
        raise InputError(f"{what} has {', '.join(known)}; {', '.join(unknown)} is none of them; remove it")
