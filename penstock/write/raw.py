"""Image files into shards without decoding them.

Covers: a source that yields the files' own bytes, and putting it in the place of one that would decode them.
Does not cover: reading files (sources/images.py), resizing (write/encode.py).

A JPEG that is decoded and compressed again loses quality and costs forty times the processor time of copying it. So
where neither a size nor another quality is asked for and nothing between reader and writer looks at the pixels, the
bytes pass as they are. Headers are read, so that a file that is no picture is still named; pixels are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.core.block import Block
from penstock.core.errors import BadData, DataError
from penstock.core.schema import OBJECT, Field, Schema
from penstock.core.source import OnError
from penstock.plan import steps
from penstock.plan.steps import Node
from penstock.sources.decode import decode_image
from penstock.sources.image_header import read_header
from penstock.sources.images import FetchedImages, ImageSource
from penstock.write.columns import stored_kind
from penstock.write.encode import QUALITY, Encoder

_BLIND = (
    steps.Read, steps.Shuffle, steps.Shard, steps.Take, steps.Skip, steps.Repeat, steps.Prefetch, steps.Concatenate,
    steps.Mix,
)  # fmt: skip
"""Steps that move samples without looking at them."""


class RawImages:
    """A `RowSource` of the same rows as an `ImageSource`, as stored bytes."""

    def __init__(self, source: ImageSource, encoder: Encoder) -> None:
        self._source, self._encoder = source, encoder

    @property
    def label(self) -> str:
        return self._source.label

    @property
    def on_error(self) -> OnError:
        return self._source.on_error

    @property
    def classes(self) -> tuple[str, ...]:
        return self._source.classes

    def schema(self) -> Schema:
        """The image as bytes; everything else as the source has it."""
        decoded = self._source.schema()
        return Schema(tuple(Field("image", OBJECT) if f.name == "image" else f for f in decoded), decoded.tree)

    def num_rows(self) -> int:
        return self._source.num_rows()

    def fetch_nbytes(self, rows: int) -> int:
        return self._source.fetch_nbytes(rows)

    def fetch(self, rows: np.ndarray) -> FetchedImages:
        return self._source.fetch(rows)

    def decode(self, fetched: FetchedImages) -> Block:
        """The bytes, once their header has been read; damaged ones go to `on_error` and are left out."""
        files, kept, stored = self._source.files, [], []
        for index, data in enumerate(fetched.data):
            where = files.path(int(fetched.rows[index]))
            try:
                stored.append(self._stored(data, where))
            except BadData as error:
                self.on_error.bad(error)
                continue
            kept.append(index)
        self.on_error.good(len(kept))
        rows = fetched.rows[kept]
        column = np.empty(len(stored), OBJECT)
        column[:] = stored
        columns: dict[str, Any] = {"image": column}
        if self._source.labelled:
            columns["label"] = self._source._labels(rows)
        return Block(columns, self._source.schema().tree, lambda i: files.path(int(rows[i])))

    def _stored(self, data: bytes | DataError, where: str) -> bytes:
        if not isinstance(data, bytes):
            raise data if isinstance(data, BadData) else BadData(where, f"it cannot be read now: {data}")
        try:
            read_header(data)
        except ValueError as error:
            raise BadData(where, str(error)) from error
        passes = ("png",) if self._encoder.lossless else ("jpg", "png", "webp")
        if stored_kind(data) in passes:
            return data
        return self._encoder.image(decode_image(data, self._source.options, where=where))[1]

    def decode_into(self, fetched: FetchedImages, out: Mapping[str, np.ndarray]) -> None:
        raise DataError("Stored images have no fixed size.")  # the schema says so: nobody calls it

    def fingerprint(self) -> str:
        return f"stored {self._source.fingerprint()}"


def undecoded(node: Node, encoder: Encoder) -> Node:
    """The plan with image files passed through as bytes where that gives the same pictures; else the plan itself."""
    if encoder.size is not None or encoder.quality != QUALITY:
        return node
    return _swapped(node, encoder) or node


def _swapped(node: Node, encoder: Encoder) -> Node | None:
    if not isinstance(node.step, _BLIND):
        return None
    if isinstance(node.step, steps.Read):
        source = node.step.source
        plain = isinstance(source, ImageSource) and source.options.size is None and source.options.mode == "rgb"
        return Node(steps.Read(RawImages(source, encoder))) if plain and isinstance(source, ImageSource) else None
    inputs = [_swapped(child, encoder) for child in node.inputs]
    found = [child for child in inputs if child is not None]
    return Node(node.step, tuple(found)) if len(found) == len(inputs) else None
