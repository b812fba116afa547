"""Image files into shards without decoding them.

Covers: a source that yields the files' own bytes, and putting it in the place of one that would decode them.
Does not cover: reading files (sources/images/source.py), resizing (encode.py).

A JPEG that is decoded and compressed again loses quality and costs forty times the processor time of copying it. So
where neither a size nor another quality is asked for and nothing between reader and writer looks at the pixels, the
bytes pass as they are. Headers are read, so that a file that is no picture is still named; pixels are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from penstock.core.block import Block
from penstock.core.byte_cache import ByteCache
from penstock.core.errors import BadData, DataError
from penstock.core.schema import OBJECT, Field, Schema
from penstock.core.source import NEW_MEMORY, Buffers
from penstock.core.wrapped_source import WrappedRows
from penstock.plan import steps
from penstock.plan.steps import Node
from penstock.sources.images.decode import decode_image
from penstock.sources.images.header import read_header
from penstock.sources.images.source import FetchedImages, ImageSource
from penstock.write.columns import stored_kind
from penstock.write.encode import QUALITY, BlockEncoder

_BLIND = (
    steps.Read, steps.Shuffle, steps.Shard, steps.Take, steps.Skip, steps.Repeat, steps.Prefetch, steps.Concatenate,
    steps.SampleFrom,
)  # fmt: skip
"""Steps that move samples without looking at them."""


class RawImages(WrappedRows):
    """The same rows as an `ImageSource`, as stored bytes."""

    def __init__(self, source: ImageSource, encoder: BlockEncoder) -> None:
        super().__init__(source)
        self._images, self._encoder = source, encoder

    def through(self, cache: ByteCache) -> Self:
        other = super().through(cache)
        other.source = other._images = self._images.through(cache)
        return other

    def schema(self) -> Schema:
        """The image as bytes; everything else as the source has it."""
        decoded = self.source.schema()
        return Schema(tuple(Field("image", OBJECT) if f.name == "image" else f for f in decoded), decoded.tree)

    def decode(self, fetched: FetchedImages, buffers: Buffers = NEW_MEMORY) -> Block:
        """The bytes, once their header has been read; damaged ones go to `on_error` and are left out."""
        files, kept, stored = self._images.files, [], []
        for index, data in enumerate(fetched.data):
            where = files.path(int(fetched.rows[index]))
            try:
                stored.append(self._stored(data, where, buffers))
            except BadData as error:
                self.on_error.bad(error)
                continue
            kept.append(index)
        rows = fetched.rows[kept]
        column = np.empty(len(stored), OBJECT)
        column[:] = stored
        columns: dict[str, Any] = {"image": column}
        if self._images.labelled:
            columns["label"] = self._images._labels(rows)
        return Block(columns, self._images.schema().tree, lambda i: files.path(int(rows[i])))

    def _stored(self, data: bytes | DataError, where: str, buffers: Buffers) -> bytes:
        if not isinstance(data, bytes):
            raise data if isinstance(data, BadData) else BadData(where, f"it cannot be read now: {data}")
        try:
            read_header(data)
        except ValueError as error:
            raise BadData(where, str(error)) from error
        passes = ("png",) if self._encoder.lossless else ("jpg", "png", "webp")
        if stored_kind(data) in passes:
            return data
        return self._encoder.image(decode_image(data, self._images.options, where=where, buffers=buffers))[1]

    def decode_into(self, fetched: FetchedImages, out: Mapping[str, np.ndarray], buffers: Buffers = NEW_MEMORY) -> None:
        raise DataError("Stored images have no fixed size.")  # the schema says so: nobody calls it

    def fingerprint(self) -> str:
        return f"stored {self.source.fingerprint()}"


def undecoded(node: Node, encoder: BlockEncoder) -> Node:
    """The plan with image files passed through as bytes where that gives the same pictures; else the plan itself."""
    if encoder.size is not None or encoder.quality != QUALITY:
        return node
    return _swapped(node, encoder) or node


def _swapped(node: Node, encoder: BlockEncoder) -> Node | None:
    if not isinstance(node.step, _BLIND):
        return None
    if isinstance(node.step, steps.Read):
        source = node.step.source
        plain = isinstance(source, ImageSource) and source.options.size is None and source.options.mode == "rgb"
        return Node(steps.Read(RawImages(source, encoder))) if plain and isinstance(source, ImageSource) else None
    inputs = [_swapped(child, encoder) for child in node.inputs]
    found = [child for child in inputs if child is not None]
    return Node(node.step, tuple(found)) if len(found) == len(inputs) else None
