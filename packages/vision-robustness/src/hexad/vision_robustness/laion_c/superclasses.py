"""The 16 superclasses of LAION-C and their 285 ImageNet-1k classes.

The indices are those of `laionc/mappings/category_mapping.json` of the official repository, whose WordNet
identifiers are numbered here as ImageNet-1k does, in their alphabetical order from 0.
"""

from collections.abc import Mapping
from types import MappingProxyType


def _indices(spans: str) -> tuple[int, ...]:
    """`"0-2,7"` to (0, 1, 2, 7)."""
    found: list[int] = []
    for span in spans.split(","):
        first, _, last = span.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)


SUPERCLASSES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "ball": _indices("429-430,768,805,852,890"),
        "bird": _indices(
            "8,10-16,18-20,22-24,80-83,87-96,98-100,127-133,135-145",
        ),
        "boat": _indices("472,510,554,576,625,814,914"),
        "bottle": _indices("440,720,737,898-899,901,907"),
        "butterfly": _indices("321-326"),
        "car_truck": _indices("436,511,555,569,656,675,717,734,817,864,867"),
        "cat": _indices("281-286"),
        "chair": _indices("423,559,703,765,831,857"),
        "dog": _indices(
            "152-191,193-203,205-226,228-241,243-250,252-257,259,261-263,265-268",
        ),
        "fish": _indices("0-4,147-148,393-397"),
        "fruit": _indices("948-951,953-954"),
        "instruments": _indices("401-402,420,432,546,558,566,579,593-594,776,881,889"),
        "primate": _indices("365-382"),
        "snakes": _indices("52-55,57-68"),
        "timekeeping": _indices("409,530-531,826,835,892"),
        "tools": _indices("491,499,587,596,740,784,792"),
    }
)
"""ImageNet-1k indices of each superclass, in alphabetical order."""


def superclass_of(index: int) -> str | None:
    """The superclass of an ImageNet-1k class, or None where it has none."""
    return next((name for name, members in SUPERCLASSES.items() if index in members), None)
