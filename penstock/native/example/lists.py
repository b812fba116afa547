"""The values of features whose number differs from record to record.

Covers: counting and writing the values of located lists, the steps of a SequenceExample, gathering bytes
(native/example_lists.c).
Does not cover: locating the lists (example.py), columns of the values (sources/tfrecord/lists.py).

`spans` is (rows, 2): start in the buffer and length, as `parse` notes them; a start of -1 is a missing list, which is
empty. `offsets` are the sums of what was counted, with a 0 before them.
"""

from __future__ import annotations

import numpy as np

from penstock.core.errors import InvalidInput
from penstock.native.library import ADDRESS, INT32, INT64, Kernel, address

_LIST = (ADDRESS, INT64, ADDRESS, INT64)
_count_values = Kernel("example_count_values", INT64, *_LIST, INT32, ADDRESS)
_count_steps = Kernel("example_count_steps", INT64, *_LIST, INT32, ADDRESS, ADDRESS)
_write_floats = Kernel("example_write_floats", INT64, *_LIST, ADDRESS, ADDRESS, INT64)
_write_ints = Kernel("example_write_ints", INT64, *_LIST, ADDRESS, ADDRESS, INT64)
_locate_bytes = Kernel("example_locate_bytes", INT64, *_LIST, ADDRESS, ADDRESS, INT64)
_locate_steps = Kernel("example_locate_steps", INT64, *_LIST, ADDRESS, ADDRESS, INT64)
_gather_bytes = Kernel("example_gather_bytes", INT64, *_LIST, ADDRESS, ADDRESS, INT64)


def count_values(buf: np.ndarray, spans: np.ndarray, kind: int) -> np.ndarray:
    """The number of values in each list; -1 for a damaged one."""
    spans = np.ascontiguousarray(spans, np.int64)
    counts = np.empty(len(spans), np.int64)
    _count_values(address(buf), len(buf), address(spans), len(spans), kind, address(counts))
    return counts


def count_steps(buf: np.ndarray, spans: np.ndarray, kind: int) -> tuple[np.ndarray, np.ndarray]:
    """The number of steps in each FeatureList, and a code: damaged, or of another kind."""
    spans = np.ascontiguousarray(spans, np.int64)
    counts, codes = np.empty(len(spans), np.int64), np.empty(len(spans), np.int64)
    _count_steps(address(buf), len(buf), address(spans), len(spans), kind, address(counts), address(codes))
    return counts, codes


def write_floats(buf: np.ndarray, spans: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The values of all lists, one after the other."""
    return _written(_write_floats, buf, spans, offsets, np.empty(_total(offsets), np.float32))


def write_ints(buf: np.ndarray, spans: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """As `write_floats`, for integers."""
    return _written(_write_ints, buf, spans, offsets, np.empty(_total(offsets), np.int64))


def locate_bytes(buf: np.ndarray, spans: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Where each value of each list of bytes lies, as (start, length)."""
    return _written(_locate_bytes, buf, spans, offsets, np.empty((_total(offsets), 2), np.int64))


def locate_steps(buf: np.ndarray, spans: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Where the list of each step lies, as (start, length); an unset step is an empty list."""
    return _written(_locate_steps, buf, spans, offsets, np.empty((_total(offsets), 2), np.int64))


def gather_bytes(buf: np.ndarray, places: np.ndarray, offsets: np.ndarray, out: np.ndarray) -> None:
    """Copy stretches of the buffer, as (start, length), to out[offsets[i]] and on."""
    if len(offsets) < len(places):
        raise InvalidInput(f"{len(places)} stretches of bytes need as many offsets, not {len(offsets)}.")
    _run(_gather_bytes, buf, places, offsets, out)


def _total(offsets: np.ndarray) -> int:
    return int(offsets[-1])


def _written(kernel: Kernel, buf: np.ndarray, spans: np.ndarray, offsets: np.ndarray, out: np.ndarray) -> np.ndarray:
    if len(offsets) != len(spans) + 1:
        raise InvalidInput(f"{len(spans)} lists need one offset more, not {len(offsets)}.")
    _run(kernel, buf, spans, offsets, out)
    return out


def _run(kernel: Kernel, buf: np.ndarray, pairs: np.ndarray, offsets: np.ndarray, out: np.ndarray) -> None:
    pairs, offsets = np.ascontiguousarray(pairs, np.int64), np.ascontiguousarray(offsets, np.int64)
    done = kernel(address(buf), len(buf), address(pairs), len(pairs), address(offsets), address(out), len(out))
    if done != len(pairs):
        raise InvalidInput(f"list {done} does not have as many values as there is room for.")
