"""Byte sizes as people write them.

Covers: "2GB" -> 2_000_000_000 and back.
Does not cover: finding out how much memory there is (memory/limits.py).

Units without an "i" are decimal and those with one are binary, so that a limit read as "2GB" is the
smaller of the two meanings: a limit that is too small slows a job, one that is too large kills it.
"""

from __future__ import annotations

import re

from penstock.core.errors import InvalidInput

Size = int | str

_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_PATTERN = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([kmgtp]?)(i?)(b?)\s*", re.IGNORECASE)


def parse_size(text: Size) -> int:
    """Turn "1.5GB", "512MiB" or a plain number of bytes into bytes."""
    if isinstance(text, bool):
        raise InvalidInput(f"A size must be a number of bytes or text such as '2GB', not {text!r}.")
    if isinstance(text, int):
        if text < 0:
            raise InvalidInput(f"A size cannot be negative: {text}.")
        return text
    match = _PATTERN.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidInput(f"{text!r} is not a size. Write a number and a unit, such as '2GB', '512MiB' or '1.5G'.")
    number, prefix, binary, _ = match.groups()
    step = 1024 if binary else 1000
    return int(float(number) * step ** _POWER[prefix.lower()])


_LEAST_WITHOUT_UNIT = 1_000_000


def option_size(option: str, text: str) -> int:
    """A size from the command line; a small number without a unit is refused, for nobody means two bytes by 2."""
    nbytes = parse_size(text)
    if text.strip().isdigit() and nbytes < _LEAST_WITHOUT_UNIT:
        unit = "byte" if nbytes == 1 else "bytes"
        raise InvalidInput(f"{option} {text} would be {text} {unit}. Write a unit: {option} {text}GB.")
    return nbytes


def size(nbytes: float) -> str:
    """Write bytes for people: 1_500_000_000 -> '1.50 GB'."""
    sign, value = ("-" if nbytes < 0 else ""), abs(float(nbytes))
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if value < (1000 if unit == "B" else 999.5) or unit == "TB":
            return f"{sign}{value:.0f} {unit}" if unit == "B" else f"{sign}{value:.3g} {unit}"
        value /= 1000
    raise AssertionError("unreachable")
