"""Cells such as 0x1f and 0xbfdbc39743b7872e: hashes, addresses and bit patterns, which are text.

Covers: finding them, in a text and in its cells.
Does not cover: reading them (arrow.py).

PyArrow takes them for integers, and those of 2^63 and more for negative ones. pandas and DuckDB take them for text.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_SIGN = r"^\s*[+-]?0[xX]"


def may_hold_hexadecimal(text: bytes | memoryview) -> bool:
    """Whether "0x" occurs anywhere in a text."""
    data = np.frombuffer(text, np.uint8)
    places = np.flatnonzero((data[1:] | 32) == ord("x"))
    return bool((data[places] == ord("0")).any())


def is_hexadecimal(cells: pa.Array | pa.ChunkedArray) -> bool:
    """Whether one of the cells (text) is such a number."""
    return bool(pc.any(pc.match_substring_regex(cells, _SIGN)).as_py())
