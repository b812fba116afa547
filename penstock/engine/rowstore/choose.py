"""Whether a shuffle goes through a row store, and where that lies.

Covers: exact shuffles, shuffles of a cache in a folder, and sources that windows would mix badly.
Does not cover: making the store (store.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.source import UnitSource, decoded_nbytes
from penstock.engine.arrange import scatters, width_of
from penstock.engine.mixing import quality_of_units
from penstock.plan import steps

MIXED_WELL = 0.9
"""Coverage from which on windows will do. The promise is 0.95; what lies between is not worth a copy of the data."""


@dataclass(frozen=True)
class Wanted:
    """A store to make. `must`: without it there is no shuffle as asked. `share` of the free disk may be used."""

    folder: str | None
    limit: int | None
    share: float
    must: bool


def store_wanted(source: UnitSource, shuffle: steps.Shuffle) -> Wanted | None:
    """The store that a shuffle needs, if any."""
    kept: steps.Cache | None = getattr(source, "kept_in", None)
    if shuffle.exact:
        folder = shuffle.folder if shuffle.folder is not None or kept is None else kept.folder
        return Wanted(folder, None if kept is None else kept.limit, 0.9, True)
    if shuffle.window is not None or _runs_code(source) or decoded_nbytes(source) <= width_of(shuffle).nbytes:
        return None
    if kept is not None and kept.folder is not None:
        return Wanted(kept.folder, kept.limit, 1.0, False)
    if scatters(source) or quality_of_units(source, shuffle, rows=5_000).coverage >= MIXED_WELL:
        return None
    return Wanted(None, None, 0.5, False)


def _runs_code(source: object) -> bool:
    """Whether rows come from a function of the user: it may never end, and may not give the same rows again."""
    while source is not None:
        if getattr(source, "functions", None) is not None:
            return True
        source = getattr(source, "source", None)
    return False
