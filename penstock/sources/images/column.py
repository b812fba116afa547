"""A column of encoded images inside records: TFRecord features, members of tar files.

Covers: `Pictures`: options of one column, the field it becomes, decoding many into one array or one array each.
Does not cover: decoding one image (decode.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.errors import BadData, InvalidInput
from penstock.core.schema import Field
from penstock.core.source import NEW_MEMORY, Buffers
from penstock.sources.images.decode import ImageOptions, decode_image, decode_image_into

UNSIZED_NBYTES = 1_000_000
"""What an image of unknown size counts for when blocks are laid out."""


@dataclass(frozen=True)
class Pictures:
    """How the images of one column are decoded. With a size they are one array, otherwise an array each."""

    options: ImageOptions

    def field(self, name: str) -> Field:
        size = self.options.size or (None, None)
        return Field(name, np.dtype(np.uint8), (*size, self.options.channels))

    @property
    def row_nbytes(self) -> int:
        """Bytes of a decoded image, a guess where it has no fixed size."""
        size = self.options.size
        return UNSIZED_NBYTES if size is None else size[0] * size[1] * self.options.channels

    def decode(
        self,
        stored: Sequence[bytes | memoryview],
        damage: Callable[[int, str], None],
        into: np.ndarray | None = None,
        *,
        skip: Collection[int] = (),
        buffers: Buffers = NEW_MEMORY,
    ) -> np.ndarray:
        """Decode images into `into` or a new array; rows in `skip` are left as they are, bad ones told to `damage`."""
        size = self.options.size
        out = into
        if out is None and size is not None:
            out = np.zeros((len(stored), *size, self.options.channels), np.uint8)
        alone = np.empty(len(stored), object) if out is None else None
        for row, data in enumerate(stored):
            if row in skip:
                continue
            try:
                if out is not None:
                    decode_image_into(bytes(data), out[row], self.options, buffers=buffers)
                elif alone is not None:
                    alone[row] = decode_image(bytes(data), self.options, buffers=buffers)
            except BadData as error:
                damage(row, error.reason)
        return out if out is not None else np.asarray(alone)


def pictures_of(
    images: str | Sequence[str] | Mapping[str, Mapping[str, Any]] | None, options: ImageOptions
) -> dict[str, Pictures]:
    """The image columns a user named; a dict gives options of their own to some of them."""
    if images is None:
        return {}
    if isinstance(images, str):
        return {images: Pictures(options)}
    if not isinstance(images, Mapping):
        return {name: Pictures(options) for name in images}
    found = {}
    for name, own in images.items():
        try:
            found[name] = Pictures(ImageOptions(**{**vars(options), **own}))
        except TypeError as error:
            raise InvalidInput(f"images={{{name!r}: {own!r}}}: {error}.") from error
    return found
