"""Quoted fields so long that a part of a file lies inside one and shows no quote.

Covers: finding the first of them in a file, where each part was taken for rows as long as no quote was known.
Does not cover: the quote state at a part's start, for files that are known to have quotes (split.py).

Parts of a file whose samples show no quotes are read without counting quotes. A part that holds one tells by itself.
One that lies inside a quoted field as a whole does not, and the newlines of the field would end rows. But the part in
which the field begins is read in every epoch too: when that shows the first quote of a file, the file is searched once.
"""

from __future__ import annotations

import numpy as np

from penstock.core.errors import BadData
from penstock.sources.csv.split import BOM, INSIDE, NEWLINE, OUTSIDE, PIECE_NBYTES, Quoting
from penstock.sources.storage import files as storage


def refuse_unseen(path: str, nbytes: int, part_nbytes: int, quoting: Quoting) -> None:
    """Raise if parts of so many bytes, read without a look at other parts, would take a field's lines for rows."""
    found = first_unseen(path, nbytes, part_nbytes, quoting)
    if found is not None:
        raise BadData(
            f"{path}, byte {found}",
            f"a quoted value with newlines begins here and is longer than the {part_nbytes:,} bytes that are read at "
            "once, in a file whose samples show no quotes: its lines may have been taken for rows. Give "
            "newlines_in_values=True, so that quotes are counted from the start, or quote=None if they are plain text",
        )


def first_unseen(path: str, nbytes: int, part_nbytes: int, quoting: Quoting) -> int | None:
    """Where the first field opens whose lines a part would show without any quote; None if there is no such field."""
    quote = b"" if quoting.quote is None else bytes([quoting.quote])
    state, before, opened = OUTSIDE, NEWLINE, 0
    for begin in range(0, nbytes, part_nbytes):
        end = min(begin + part_nbytes, nbytes)
        at, began, shows = begin, before == NEWLINE, False
        while at < end:
            data = storage.read_range(path, at, min(PIECE_NBYTES, end - at))
            if not data:
                return None
            skipped = len(BOM) if at == 0 and data.startswith(BOM) else 0
            text = np.frombuffer(data, np.uint8)[skipped:]
            if len(text):
                toggles, state = quoting.toggles(text, state, before)
                if state == INSIDE and len(toggles):
                    opened = at + skipped + int(toggles[-1])
                before = int(text[-1])
            first = 0 if began else data.find(b"\n")
            if first >= 0:  # rows of this part begin behind its first newline
                began, shows = True, shows or data.find(quote, first) >= 0
            at += len(data)
        if began and not shows and state == INSIDE:
            return opened
    return None
