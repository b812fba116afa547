"""Single pieces of data that can never fit are refused before they are read.

Covers: a check by the length that a file claims or has, for records, members and stretches that no plan foresaw.
Does not cover: pieces whose size is known when a run is planned (engine/streams/stream.py leases those).
"""

from __future__ import annotations

from penstock.core.errors import TooLarge
from penstock.memory.limits import current_limit
from penstock.memory.watchdog import default_reserve

LEAST_NBYTES = 16_000_000
"""Smaller ones always fit, and are not looked at."""
COPIES = 3
"""A piece is held as it is stored, as a block and in a batch."""


def most_nbytes() -> int:
    """How large one piece of data may be: a third of the largest data budget that there can be."""
    limit = current_limit().nbytes
    return max(LEAST_NBYTES, (limit - default_reserve(limit)) // COPIES)


def refuse_giant(nbytes: int, *, who: str) -> None:
    """Raise TooLarge if a piece of so many bytes could not be held even alone."""
    if nbytes <= LEAST_NBYTES:
        return
    most = most_nbytes()
    if nbytes > most:
        raise TooLarge(who=who, nbytes=COPIES * nbytes, limit=COPIES * most, change="Make the pieces smaller")
