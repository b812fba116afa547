"""Image files as rows: every image can be fetched for itself.

Covers: reading files' bytes, decoding them into blocks or batch slots, their labels.
Does not cover: which files there are (sources/listing/sample_files.py, manifest.py), pixels (decode.py).
"""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.block import Block
from penstock.core.byte_cache import ByteCache
from penstock.core.errors import BadData, DataError, MapError
from penstock.core.schema import Field, Schema
from penstock.core.source import NEW_MEMORY, Buffers, OnError
from penstock.core.tree import Tree
from penstock.sources.images.decode import ImageOptions, decode_image, decode_image_into
from penstock.sources.listing.packed_names import PathIndex
from penstock.sources.storage import files as storage
from penstock.sources.storage.unchanged import Unchanged

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")

LOOKED_AT = 64
"""Files whose sizes stand for all."""

LabelFunction = Callable[[str], int]


@dataclass(frozen=True)
class FetchedImages:
    """The stored bytes of some rows; a file that could not be read stands there as its error."""

    rows: np.ndarray
    data: list[bytes | DataError]

    @property
    def nbytes(self) -> int:
        return sum(len(data) for data in self.data if isinstance(data, bytes))


class ImageSource:
    """A `RowSource` of image files. Samples are `(image, label)`, or a bare image where there are no labels."""

    def __init__(
        self,
        files: PathIndex,
        options: ImageOptions,
        *,
        label_function: LabelFunction | None = None,
        on_error: OnError | None = None,
        name: str = "",
    ) -> None:
        self.files = files
        self.options = options
        self.label_function = label_function
        self._on_error = on_error or OnError()
        self._name = name or files.root
        self._unchanged = Unchanged(len(files))

    def through(self, cache: ByteCache) -> ImageSource:
        """The same source, its remote files read through a cache."""
        other = copy.copy(self)
        other.files = self.files.through(cache)
        return other

    @property
    def remote(self) -> bool:
        return len(self.files) > 0 and storage.is_remote(self.files.path(0))  # one stands for millions

    @property
    def label(self) -> str:
        return f"images({self._name})"

    @property
    def on_error(self) -> OnError:
        return self._on_error

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of their labels; empty where labels are numbers or missing."""
        return self.files.classes

    @property
    def labelled(self) -> bool:
        return self.files.labelled or self.label_function is not None

    @property
    def _tree(self) -> Tree:
        return ("image", "label") if self.labelled else "image"

    def schema(self) -> Schema:
        """uint8 images; their height and width are open unless a size was asked for."""
        size: tuple[int | None, ...] = self.options.size or (None, None)
        fields = [Field("image", np.dtype(np.uint8), (*size, self.options.channels))]
        if self.labelled:
            fields.append(Field("label", self._label_dtype))
        return Schema(tuple(fields), self._tree)

    @property
    def _label_dtype(self) -> np.dtype[Any]:
        return np.dtype(np.int64) if self.label_function is not None else self.files.label_dtype

    def num_rows(self) -> int:
        return len(self.files)

    @functools.cached_property
    def _sizes(self) -> np.ndarray:
        """Sizes of some files, spread over all."""
        count = min(LOOKED_AT if not storage.is_remote(self.files.path(0)) else 8, len(self.files))
        rows = np.linspace(0, len(self.files) - 1, count).astype(np.int64)
        found = []
        for row in rows:
            try:
                found.append(storage.file_size(self.files.path(int(row))))
            except DataError:
                found.append(0)  # it is reported when its turn comes
        return np.array(found, np.int64)

    def fetch_nbytes(self, rows: int) -> int:
        """Mean size of the files looked at, and three deviations for the case that large ones meet."""
        mean, spread = float(self._sizes.mean()), float(self._sizes.std())
        return int(rows * (mean + 64) + 3 * spread * rows**0.5)

    def fetch(self, rows: np.ndarray) -> FetchedImages:
        """The bytes of the rows' files."""
        paths = [self.files.path(int(row)) for row in rows]
        # No image of max_pixels is larger than 16 bits in four channels, uncompressed, plus its notes.
        limit = self.options.max_pixels * 8 + 16_000_000
        data = storage.read_files(paths, limit_nbytes=limit)
        for row, path, read in zip(rows.tolist(), paths, data, strict=True):
            if isinstance(read, bytes) and not storage.is_remote(path):  # a store's files are read whole or not at all
                self._unchanged.check(row, path)
        return FetchedImages(rows, data)

    def decode(self, fetched: FetchedImages, buffers: Buffers = NEW_MEMORY) -> Block:
        """Rows in the order fetched; damaged ones go to `on_error` and are left out."""
        options, count = self.options, len(fetched.rows)
        fixed = options.size is not None
        shape = (count, *options.size, options.channels) if options.size is not None else (count,)
        images = np.empty(shape, np.uint8 if fixed else object)
        kept: list[int] = []
        for i in range(count):
            where = self.files.path(int(fetched.rows[i]))
            try:
                data = _bytes(fetched.data[i], where)
                if fixed:
                    decode_image_into(data, images[len(kept)], options, where=where, buffers=buffers)
                else:
                    images[len(kept)] = decode_image(data, options, where=where, buffers=buffers)
            except BadData as error:
                self._on_error.bad(error)
                continue
            kept.append(i)
        rows = fetched.rows[kept]
        columns: dict[str, Any] = {"image": images[: len(kept)]}
        if self.labelled:
            columns["label"] = self._labels(rows)
        return Block(columns, self._tree, lambda i: self.files.path(int(rows[i])))

    def decode_into(self, fetched: FetchedImages, out: Mapping[str, np.ndarray], buffers: Buffers = NEW_MEMORY) -> None:
        """Decode straight into batch slots, one a row. Damage raises."""
        for i, slot in enumerate(out["image"]):
            where = self.files.path(int(fetched.rows[i]))
            decode_image_into(_bytes(fetched.data[i], where), slot, self.options, where=where, buffers=buffers)
        if self.labelled:
            out["label"][:] = self._labels(fetched.rows)

    def _labels(self, rows: np.ndarray) -> np.ndarray:
        if self.label_function is None:
            return self.files.labels(rows)
        return np.fromiter(self._called(self.label_function, rows), np.int64, len(rows))

    def _called(self, function: LabelFunction, rows: np.ndarray) -> Iterator[int]:
        for row in rows:
            path = self.files.path(int(row))
            try:
                yield int(function(path))
            except Exception as error:
                raise MapError(getattr(function, "__name__", "labels"), path, error) from error

    def fingerprint(self) -> str:
        """Names, labels, sizes of some files and how they are decoded.

        Times are left out on purpose: a copy of the data on another machine is the same data.
        """
        digest = hashlib.blake2b(digest_size=16)
        digest.update(f"{self.files.digest} {self.options!r} {self._sizes.tolist()}".encode())
        return digest.hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_sizes"}


def _bytes(data: bytes | DataError, where: str) -> bytes:
    """The bytes that were read, or the reason why there are none, as damage to this row."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, BadData):
        raise data
    raise BadData(where, "the file was there when the folder was listed but cannot be read now") from data
