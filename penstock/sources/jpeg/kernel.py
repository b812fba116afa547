"""When a JPEG file is decoded by penstock's own kernels, and the memory that they work in.

Covers: compiling in the background, which files and options they are for, calling them.
Does not cover: everything else, which is libjpeg-turbo's (sources/decode.py): other kinds of JPEG, damaged files,
scaled decoding, and the pictures that come before the kernels are there. Pixels are equal bit for bit, so that it does
not matter who decodes what.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.memory.limits import current_limit
from penstock.memory.meter import Meter
from penstock.sources.compile_background import Kernel

FREE_NBYTES = 1_000_000_000
"""What must be free below the limit: the compiler takes 75 MB, twice that when it really compiles, and the model may
not have grown yet. Where less is free, libjpeg-turbo decodes all."""

FIRST_PICTURES = 64
"""Pictures before the kernels are asked for: fewer are decoded sooner than a compiler is loaded."""

MOST_ROOM = 24_000_000
"""Bytes of working room for one picture (about 14 megapixels); larger ones are left to libjpeg-turbo, line by line."""

_BACKWARDS = {"rgb": False, "bgr": True}

Room = Callable[[str, int], np.ndarray]
"""Recycled memory by purpose, zero when it is new."""


class JpegKernel(Kernel):
    """The compiled decoder of this process."""

    instead = "libjpeg-turbo decodes all pictures"

    def __init__(self) -> None:
        super().__init__()
        self._seen = 0

    def make(self, dtype: np.dtype[Any]) -> Any:
        from penstock.sources.jpeg import decoder

        return decoder

    def wanted(self) -> Any:
        """The decoder if it is there; now and then it is asked for, where there is room for a compiler."""
        found = self.loaded(np.uint8)
        if found is None:
            self._seen += 1  # threads may count past each other: it is a rough number
            if self._seen % FIRST_PICTURES == 0 and current_limit().nbytes - Meter().read().nbytes >= FREE_NBYTES:
                found = self.get(np.uint8)
        return found


kernel = JpegKernel()
"""One per process: compiled code is shared by all sources."""


def decode(data: bytes, mode: str, fast: bool, out: np.ndarray, room: Room) -> bool:
    """Decode into `out` (flat bytes, exactly the picture's) if these kernels can: whether they have."""
    backwards = _BACKWARDS.get(mode)
    found = None if backwards is None else kernel.wanted()
    if found is None:
        return False
    text = np.frombuffer(data, np.uint8)
    work = room("jpeg tables", 8 * found.WORK_SIZE).view(np.int64)
    nbytes = found.survey(text, work)
    if not 0 < nbytes <= MOST_ROOM:
        return False
    done = found.decode(text, work, room("jpeg planes", nbytes), out, fast, backwards)
    return bool(done == found.OK)
