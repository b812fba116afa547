"""Rows with fewer values than columns, made whole.

Covers: finding them with PyArrow's own count of values, and putting delimiters behind them.
Does not cover: rows with too many values, which are damaged whatever is asked (arrow.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from penstock.sources.csv.split import NEWLINE, OUTSIDE, Quoting


def padded(text: bytes | memoryview, quoting: Quoting, lacking: Mapping[int, int]) -> bytes:
    """The text with so many more delimiters at the end of each of the given rows (lines that are not empty)."""
    starts, stops = row_spans(text, quoting)
    whole, parts, at = bytes(text), list[bytes](), 0
    sign = bytes([quoting.delimiter])
    # PyArrow takes a lone carriage return for a line's end: it may count more rows than there are lines.
    for row in sorted(row for row in lacking if row < len(stops)):
        stop = int(stops[row])
        stop -= whole[stop - 1 : stop] == b"\r" and stop > int(starts[row])
        parts += [whole[at:stop], sign * lacking[row]]
        at = stop
    return b"".join([*parts, whole[at:]])


def row_spans(text: bytes | memoryview, quoting: Quoting) -> tuple[np.ndarray, np.ndarray]:
    """Where each row (a line that is not empty) starts in the text, and where its newline is."""
    data = np.frombuffer(text, np.uint8)
    ends = quoting.newlines(data, OUTSIDE, NEWLINE)
    starts = np.concatenate([[0], ends + 1])
    stops = np.concatenate([ends, [len(data)]])
    lengths = stops - starts
    bare = (lengths == 1) & (data[np.minimum(starts, len(data) - 1)] == 13)
    kept = (lengths > 0) & ~bare
    return starts[kept], stops[kept]
