"""Which lines of the script had allocated what was held at the peak of a rehearsal.

Covers: reading what memray recorded inside of the script, where it is installed.
Does not cover: recording (run/inject/penstock_inside/allocations.py); memory that is no allocation (mapped files).
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

from penstock.core.sizes import size
from penstock.doctor.evidence.folder import INSIDE
from penstock.doctor.verdict.facts import is_users

MOST_LINES = 3
LEAST = 1 << 20
DEEPEST = 60


def allocated_lines(folder: Path) -> list[str]:
    """The lines that held the most at the peak, in words; empty where nothing was recorded or can be read."""
    if importlib.util.find_spec("memray") is None:
        return []
    found: Counter[str] = Counter()
    for path in (folder / INSIDE).glob("memray.*.bin"):
        found += _by_line(path)
    return [
        f"memray: {size(nbytes)} of the peak were allocated at {place}"
        for place, nbytes in found.most_common(MOST_LINES)
        if nbytes >= LEAST
    ]


def _by_line(path: Path) -> Counter[str]:
    """Bytes at the high-water mark by the innermost line of the script."""
    from memray import FileReader

    found: Counter[str] = Counter()
    try:
        reader = FileReader(str(path))
    except OSError:  # killed before anything was written
        return found
    with reader:
        for record in reader.get_high_watermark_allocation_records(merge_threads=True):
            frames = record.stack_trace(max_stacks=DEEPEST)
            place = next((f"{file}:{line}" for _, file, line in frames if is_users(file)), "")
            if place:
                found[place] += record.size
    return found
