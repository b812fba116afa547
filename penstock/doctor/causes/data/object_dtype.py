"""Cells are Python objects.

Covers: columns and arrays of dtype object: text, mixed values, lists in cells.
Does not cover: tables whose cells are numbers (whole_table.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.static.script import Script, keyword
from penstock.doctor.verdict.facts import Clues

OBJECTS = ("object", "O", "numpy.object_")


def live(facts: Clues) -> Sign | None:
    for item in facts.names:
        cells = re.search(r", (\d+) of text", item.detail)
        if item.last > 0.3 * facts.limit and (cells or item.detail.startswith("object[")):
            text = f"{item.name} {item.detail} holds {size(item.last)}: every cell is a Python object"
            return Sign(0.9, (text,), nbytes=item.last)
    return None


def script(script: Script) -> Iterator[Found]:
    for call in script.all_calls:
        value = keyword(call, "dtype")
        if value is None and script.name(call.func).endswith(".astype") and call.args:
            value = call.args[0]
        if value is not None and (script.name(value) in OBJECTS or script.value(value) in OBJECTS):
            yield Found(script.place(call), "dtype object: every cell is a Python object of 50 bytes or more", near=1)


CAUSE = Cause(
    name="object-dtype",
    title="Cells are Python objects",
    why="A column of dtype object holds a pointer and a Python object per cell: about ten times the bytes of the text.",
    cure="Categories for repeated text (astype('category')), Arrow's strings, numbers where they are numbers.",
    live=live,
    script=script,
    instead="ps.read_csv(path): text is kept as bytes, in batches",
)
