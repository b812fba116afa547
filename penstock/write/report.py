"""What a write came to.

Covers: the result of `ds.write` and `penstock pack`.
Does not cover: writing (run.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.sizes import size


@dataclass(frozen=True)
class WriteReport:
    """Rows, shard files (in order), their bytes, and one checksum over all of them, as read back from disk."""

    rows: int
    files: tuple[str, ...]
    nbytes: int
    checksum: str

    def __str__(self) -> str:
        return f"{self.rows} rows in {len(self.files)} files, {size(self.nbytes)}, checksum {self.checksum}"
