"""Counts and bytes as people write them."""

import re

from hexad.core.errors import InputError

_PREFIXES = "KMGTPEZY"
_UNITS = {"": 1, "b": 1} | {
    prefix.lower() + suffix: base**power
    for power, prefix in enumerate(_PREFIXES, 1)
    for suffix, base in (("", 1000), ("b", 1000), ("ib", 1024))
}
_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*(?:e[+-]?\d+)?|\.\d+"
_BYTES = re.compile(rf"(?:(\d+)\s*[x*×]\s*)?({_NUMBER})\s*([A-Z]*)", re.IGNORECASE)


def short(count: float) -> str:
    """A count for people: 1.7B, 990M, 12."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if 0.9995 * size <= abs(count) < 999.5 * size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.3g}"


def short_bytes(count: float) -> str:
    """A number of bytes for people, in powers of 1000: 80 GB, 13.1 MB."""
    for power in range(len(_PREFIXES), 0, -1):
        if abs(count) >= 0.9995 * 1000**power:
            return f"{count / 1000**power:.3g} {_PREFIXES[power - 1]}B"
    return f"{count:.3g} bytes"


def parse_bytes(text: str, what: str = "memory") -> float:
    """A number of bytes such as 80GB, 80G, 8x80GB, 64 GiB, 1,000GB or 24e9.

    Raises:
        InputError: it is none, or it is one of bits.
    """
    match = _BYTES.fullmatch(text.strip())
    unit = match[3] if match else ""
    if re.fullmatch(r"[A-Z]i?b", unit):
        raise InputError(f"{what} is {text!r}, and {unit} are bits; write bytes, such as 80{unit[:-1]}B")
    number = float(match[2].replace(",", "")) if match else 0.0
    if match is None or unit.lower() not in _UNITS or not 0 < number < float("inf"):
        raise InputError(f"{what} is {text!r}; write a number of bytes, such as 80GB, 8x80GB, 64GiB or 24e9")
    return int(match[1] or 1) * number * _UNITS[unit.lower()]
