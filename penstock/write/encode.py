"""Blocks of samples as they are stored: images compressed, columns named.

Covers: the function that runs on every block before it is written, in the engine's workers.
Does not cover: files (formats.py), passing image files through untouched (raw.py).

Arrays of 8-bit pixels (height x width, or with 1, 3 or 4 channels) are images: JPEG, or PNG where `lossless` is asked
for or JPEG has no form for them (4 channels). Bytes that begin as JPEG, PNG or WebP do are pictures already.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any, Literal

import cv2
import numpy as np

from penstock.core.block import column_nbytes, to_numpy
from penstock.core.errors import DataError, InvalidInput
from penstock.core.schema import OBJECT
from penstock.native.example.write import encode_block
from penstock.sources.tfrecord.write import encode_example, frame
from penstock.write.columns import has_pixels, has_stored, named, stored_kind

Format = Literal["parquet", "webdataset", "tfrecord"]
FORMATS = ("parquet", "webdataset", "tfrecord")

QUALITY = 95
"""Of JPEG, unless asked otherwise. Asking for another one means that JPEG files are compressed anew."""

_PART_NBYTES = 2_000_000


@dataclass(frozen=True)
class BlockEncoder:
    """From a block of samples to what is stored of it."""

    format: Format
    quality: int = QUALITY
    lossless: bool = False
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise InvalidInput(f"format must be one of {', '.join(FORMATS)}, not {self.format!r}.")
        if not 1 <= self.quality <= 100:
            raise InvalidInput(f"quality must be 1 to 100, not {self.quality}.")

    def __call__(self, *shown: Any) -> dict[str, Any]:
        """The stored columns of a block; a tuple's members come as arguments."""
        columns = named(shown[0] if len(shown) == 1 else shown)
        if self.format == "webdataset":
            return self._members({name: to_numpy(column) for name, column in columns.items()})
        stored = {name: self._compressed(c) if has_pixels(c) else c for name, c in columns.items()}
        if self.format == "parquet":
            return stored
        return {"record": records({name: to_numpy(column) for name, column in stored.items()})}

    def _compressed(self, pixels: np.ndarray) -> np.ndarray:
        return objects([None if value is None else self.image(value)[1] for value in pixels])

    def image(self, pixels: np.ndarray) -> tuple[str, bytes]:
        """The suffix and the bytes of a compressed image."""
        if self.size is not None and pixels.shape[:2] != self.size:
            height, width = self.size
            shrinks = height < pixels.shape[0]
            pixels = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)
        channels = 1 if pixels.ndim == 2 else pixels.shape[2]
        suffix = "png" if self.lossless or channels == 4 else "jpg"
        swap = {3: cv2.COLOR_RGB2BGR, 4: cv2.COLOR_RGBA2BGRA}.get(channels)
        stored = pixels if swap is None else cv2.cvtColor(pixels, swap)
        options = [cv2.IMWRITE_JPEG_QUALITY, self.quality] if suffix == "jpg" else []
        done, data = cv2.imencode(f".{suffix}", np.ascontiguousarray(stored), options)
        if not done:
            raise DataError(f"An image of {pixels.shape} could not be compressed as {suffix}.")
        return suffix, data.tobytes()

    def _members(self, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The files of each sample: a column for each extension, None where a sample has none."""
        rows = len(next(iter(columns.values())))
        members: dict[str, np.ndarray] = {}
        fields: list[dict[str, Any]] = [{} for _ in range(rows)]
        alone = sum(has_pixels(c) or has_stored(c) for c in columns.values()) == 1
        for name, column in columns.items():
            for row in range(rows):
                found = self._member(name, column[row], alone)
                if found is None:
                    value = column[row]
                    fields[row][name] = value.item() if isinstance(value, (np.generic, np.ndarray)) else value
                else:
                    members.setdefault(found[0], np.full(rows, None, OBJECT))[row] = found[1]
        if any(fields):
            members["json"] = objects([json.dumps(field).encode() if field else None for field in fields])
        return members

    def _member(self, name: str, value: Any, alone: bool) -> tuple[str, bytes] | None:
        """A value as a file of its own, by extension; None if it belongs into the JSON."""
        plain = name.replace(".", "_")
        if _is_array(value) and value.dtype == np.uint8 and has_pixels(value[None]):
            suffix, data = self.image(value)
            return (suffix if alone else f"{plain}.{suffix}"), data
        kind = stored_kind(value)
        if kind is not None:
            return (kind if alone else f"{plain}.{kind}"), value
        if name == "label" and isinstance(value, np.integer):
            return "cls", str(int(value)).encode()
        if isinstance(value, str):
            return f"{plain}.txt", value.encode()
        if isinstance(value, bytes):
            return f"{plain}.bin", value
        if _is_array(value):
            file = io.BytesIO()
            np.save(file, value, allow_pickle=False)
            return f"{plain}.npy", file.getvalue()
        return None


def records(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Framed tf.train.Example records of a block, made some at a time so that the block is not held a third time."""
    rows = len(next(iter(columns.values())))
    nbytes = sum(column_nbytes(column) for column in columns.values())
    step = max(1, int(rows * _PART_NBYTES / max(1, nbytes)))
    found: list[bytes] = []
    for first in range(0, rows, step):
        found += _some_records({name: column[first : first + step] for name, column in columns.items()})
    return objects(found)


def _some_records(columns: dict[str, np.ndarray]) -> list[bytes]:
    found = encode_block(columns)
    if found is not None:
        return found
    rows = len(next(iter(columns.values())))
    return [frame(encode_example({name: c[row] for name, c in columns.items()})) for row in range(rows)]


def objects(values: list[Any]) -> np.ndarray:
    """Values as a column of Python objects."""
    out = np.empty(len(values), OBJECT)
    out[:] = values
    return out


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim > 0
