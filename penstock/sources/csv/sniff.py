"""How a CSV file is written, from its first lines: delimiter, quote, and whether the first line names the columns.

Covers: the guesses, and saying that there is none.
Does not cover: names and types (types.py).

A wrong guess about the header loses a row or invents one, so the rule is narrow. Words over numbers are names. Numbers
over numbers are a row if no name looks like them (a fraction, a sign, the same one twice) or if a word beside them
comes again in its column. Where neither holds, whole numbers that count up (0, 1, 2 or 2019, 2020) are names, unless
they are two alone (the edge 5, 6 of a graph) or rows below count up as well; any others are nobody's guess: the user
is asked. So it is for a first line that comes again, for words that no name looks like (a sentence, an address), for a
single line of numbers, and for a first line that may be a comment.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from penstock.sources.csv.arrow import Dialect

DELIMITERS = (",", ";", "\t", "|")
COMMENT = "#"
LINES = 200
"""Lines that are looked at."""

_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*\Z")
_WHOLE = re.compile(r"\s*\d+\s*\Z")
_LONGEST_NAME_CHARS = 120
_DATE = re.compile(r"\s*\d{4}-\d\d?-\d\d?([ T]\d\d?:\d\d.*)?\s*\Z")


def sniff_delimiter(head: bytes, quote: str | None) -> str:
    """The delimiter that a file's first lines agree on; a comma if none does."""
    if quote is not None:  # before lines are split: a quoted value may hold newlines
        mark = re.escape(quote.encode())
        head = re.sub(mark + b"[^" + mark + b"]*" + mark, b"", head)
    lines = [line for line in head.split(b"\n")[:-1][:20] if line.strip()] or [head]
    plain = [line for line in lines if not line.lstrip().startswith(COMMENT.encode())]
    lines = plain or lines
    counts = {sign: [line.count(sign.encode()) for line in lines] for sign in DELIMITERS}
    there = [sign for sign in DELIMITERS if counts[sign][0]]
    return max(there, key=lambda sign: (len(set(counts[sign])) == 1, counts[sign][0]), default=",")


def sniff_quote(head: bytes) -> str:
    """A single quote if values stand in those and none in double ones; else a double quote."""
    if b'"' in head or head.count(b"'") < 4:
        return '"'
    text = head[: head.rfind(b"\n") + 1 or None].decode("utf-8", "replace")
    signs = "".join(map(re.escape, DELIMITERS))
    opened = len(re.findall(rf"(?:^|[{signs}])'", text, re.MULTILINE))
    whole = len(re.findall(rf"(?:^|(?<=[{signs}]))'(?:[^'\n]|'')*'(?=[{signs}]|\r?$)", text, re.MULTILINE))
    inside = re.sub(r"'(?:[^'\n]|'')*'", "", text).count("'")
    return "'" if opened and whole == opened and not inside else '"'


def sniff_header(head: bytes, dialect: Dialect) -> bool | None:
    """Whether the first line names the columns; None if it may be a row as well."""
    rows = _rows(head, dialect)
    if not rows:
        return True
    first, below = rows[0], [row for row in rows[1:] if row != rows[0]]
    if not below:  # alone, or repeated
        return True if len(rows) == 1 and not _all(_NUMBER, [cell for cell in first if cell.strip()]) else None
    if _may_be_comment(rows, dialect):
        return None
    missing = {"", *dialect.null_values}
    columns = [[row[at].strip() for row in below if at < len(row)] for at in range(len(first))]
    columns = [[cell for cell in column if cell not in missing] for column in columns]
    over = [(cell.strip(), column) for cell, column in zip(first, columns, strict=True) if column]
    over = [(cell, column) for cell, column in over if cell not in missing]
    numbers = [cell for cell, column in over if _all(_NUMBER, [cell, *column])]
    if any(not _NUMBER.match(cell) and _all(_NUMBER, column) for cell, column in over):
        return True
    if any(not _DATE.match(cell) and _all(_DATE, column) for cell, column in over):
        return True
    if any(_DATE.match(cell) and _all(_DATE, column) for cell, column in over):
        return False
    again = any(not _NUMBER.match(cell) and cell in column for cell, column in over)
    if not numbers:
        unlike = again or len(below) < len(rows) - 1 or any(_is_no_name(cell) for cell in first)
        return None if unlike else True
    odd = any(not _WHOLE.match(cell) for cell in numbers) or len(set(numbers)) < len(numbers)
    if odd or again:
        return False
    alone = len(numbers) == 2 == len(first)
    return True if not alone and _counts_up(numbers) and not any(map(_counts_up, below)) else None


def _may_be_comment(rows: Sequence[Sequence[str]], dialect: Dialect) -> bool:
    """Whether the first line begins as comments do: with a space behind the sign, or as many cells as no line below."""
    if dialect.comment is not None or not rows[0][0].lstrip().startswith(COMMENT):
        return False
    below = next((row for row in rows if not row[0].lstrip().startswith(COMMENT)), rows[0])
    return rows[0][0].lstrip()[1:2].isspace() or len(rows[0]) != len(below)


def begins_as_comment(head: bytes) -> bool:
    """Whether the first line that is not empty begins with the usual sign of comments."""
    return head.lstrip().startswith(COMMENT.encode())


def _is_no_name(cell: str) -> bool:
    return len(cell) > _LONGEST_NAME_CHARS or "://" in cell


def _all(kind: re.Pattern[str], cells: Sequence[str]) -> bool:
    return all(kind.match(cell) for cell in cells)


def _counts_up(cells: Sequence[str]) -> bool:
    if len(cells) < 2 or not _all(_WHOLE, cells):
        return False
    return all(int(b) - int(a) == 1 for a, b in itertools.pairwise(cells))


def _rows(head: bytes, dialect: Dialect) -> list[list[str]]:
    """The first lines as cells, without one that the head cuts off."""
    whole = head if len(head) < 1000 else head[: head.rfind(b"\n") + 1] or head
    lines = io.StringIO(whole.decode("utf-8", "replace"), newline="")
    found: Iterable[list[str]]
    if dialect.quote is None:
        found = (line.rstrip("\r\n").split(dialect.delimiter) for line in lines)
    else:
        csv.field_size_limit(2**31 - 1)
        found = csv.reader(lines, delimiter=dialect.delimiter, quotechar=dialect.quote)
    rows: list[list[str]] = []
    try:
        for cells in found:
            if any(cell.strip() for cell in cells):
                rows.append(cells)
            if len(rows) == LINES:
                break
    except csv.Error:
        return rows  # reported when it is read
    return rows


def sniffed(head: bytes, dialect: Dialect, *, delimiter: bool, quote: bool) -> Dialect:
    """The dialect with its delimiter and its quote as the first lines have them, where those are asked for."""
    if quote:
        dialect = replace(dialect, quote=sniff_quote(head))
    return replace(dialect, delimiter=sniff_delimiter(head, dialect.quote)) if delimiter else dialect


def shown(head: bytes) -> str:
    """The beginning of the first line that is not empty, for messages."""
    line = head.lstrip(b"\r\n").partition(b"\n")[0].decode("utf-8", "replace").rstrip()
    return repr(line if len(line) <= 60 else f"{line[:57]}...")
