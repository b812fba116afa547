"""TFRecord records as they are: bare bytes.

Covers: `RawParser`, for `parse=None`.
Does not cover: records that are examples (columns.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from penstock.core.block import Block
from penstock.core.errors import BadData, InvalidInput
from penstock.core.schema import OBJECT, Field, Schema
from penstock.core.source import NEW_MEMORY, Buffers, OnError
from penstock.native.tfrecord import HEADER, OK, check_records
from penstock.sources.tfrecord.columns import Frames
from penstock.sources.tfrecord.lists import binary_column

RECORD = "record"


@dataclass(frozen=True)
class RawParser:
    """Checks frames and hands their records over, as the bare column `record`."""

    check: bool = True

    @property
    def schema(self) -> Schema:
        return Schema((Field(RECORD, OBJECT),), RECORD)

    @property
    def row_nbytes(self) -> int:
        return 0  # the bytes of the record are counted as stored bytes already

    def block(self, frames: Frames, on_error: OnError, buffers: Buffers = NEW_MEMORY) -> Block:
        """The records of frames; damaged ones go to `on_error` and are left out."""
        codes = check_records(frames.buf, frames.offsets, frames.lengths, self.check)
        for row in np.flatnonzero(codes):
            on_error.bad(BadData(frames.where(int(row)), "the record does not match its checksum or is cut short"))
        kept = np.flatnonzero(codes == OK)
        places = np.stack([frames.offsets[kept] + HEADER, frames.lengths[kept]], axis=1)
        column = binary_column(frames.buf, places.astype(np.int64))
        return Block({RECORD: column}, RECORD, lambda row: frames.where(int(kept[row])))

    def write(
        self, frames: Frames, out: Mapping[str, np.ndarray], on_error: OnError, buffers: Buffers = NEW_MEMORY
    ) -> None:
        """Raw records have no fixed size, so nobody can ask for this."""
        raise InvalidInput("Raw records have no fixed shape to be written into arrays.")
