"""Types of JSON values that Arrow cannot infer: judged in Python, one line at a time.

Covers: the Arrow type of a parsed value, fields whose values are of several types, lines that are no objects.
Does not cover: reading (parse.py), which lines are sampled (source.py).

Arrow refuses a whole line when one of its fields mixes types, needs exponential time to infer deeply nested empty
arrays, and ends the process when the first line is `null`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.sources.json.parse import agree

DEEP = re.compile(rb"(?:\[\s*){7}")
"""Arrays within arrays, from here on too deep for Arrow's inference (it doubles every two levels)."""

LONG = re.compile(rb"[:,\[]\s*-?\d{19}")
"""Integers that may need more than 64 bits: Arrow would infer floats and round them."""


@dataclass
class Judged:
    """The fields of one line, and why others have no type."""

    fields: list[pa.Field] = field(default_factory=list)
    mixed: dict[str, str] = field(default_factory=dict)


def judge(line: bytes) -> Judged:
    """Types of a line's fields. Raises ValueError with the reason if it is no JSON object."""
    try:
        found = json.loads(line.decode("utf-8"), parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError(f"it is {_word(found)}, not an object")
    judged = Judged()
    judged.fields = [*_fields(found, "", judged.mixed)]
    return judged


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def _fields(found: Mapping[str, Any], prefix: str, mixed: dict[str, str]) -> list[pa.Field]:
    fields = []
    for name, value in found.items():
        kind = _type(value, prefix + name, mixed)
        if kind is not None:
            fields.append(pa.field(name, kind))
    return fields


def _type(value: Any, name: str, mixed: dict[str, str]) -> pa.DataType | None:
    """The type that Arrow would infer, or None if there is none: the field is noted then."""
    if isinstance(value, dict):
        inner = _fields(value, f"{name}.", mixed)
        return pa.struct(inner)
    if isinstance(value, list):
        kind: pa.DataType = pa.null()
        for item in value:
            inside: dict[str, str] = {}
            one = _type(item, name, inside)
            both = None if one is None or inside else agree(kind, one)
            if both is None:
                mixed[name] = next(iter(inside.values()), "") or f"its lists mix {kind} and {one}"
                return None
            kind = both
        return pa.list_(kind)
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        fits = "'uint64' holds it" if 0 <= value < 2**64 else "no integer type holds it"
        mixed[name] = f"it holds {str(value)[:40]}, which int64 cannot hold and a float would round ({fits})"
        return None
    return _PLAIN[type(value)]


_PLAIN = {type(None): pa.null(), bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}


def _word(value: Any) -> str:
    if value is None:
        return "null"
    return {bool: "true or false", int: "a number", float: "a number", str: "text", list: "an array"}[type(value)]
