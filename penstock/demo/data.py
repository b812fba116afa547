"""Makes the demonstration's data: pictures of stripes in two directions, and a table with a label to learn.

Covers: writing both, in bounded memory, once.
Does not cover: reading them (naive.py, train.py).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import simplejpeg

SIDE = 256
FEATURES = 40
CHUNK_ROWS = 100_000
_WRITTEN_AT_A_TIME = 64


def make_images(folder: Path, count: int, progress: Callable[[int], None]) -> None:
    """`count` JPEG files in two class folders: stripes across and stripes down, with noise."""
    for name in ("across", "down"):
        (folder / name).mkdir(parents=True, exist_ok=True)

    def write(index: int) -> None:
        rng = np.random.default_rng(index)
        waves = np.sin(np.arange(SIDE) / rng.uniform(2, 9) + rng.uniform(0, 6)) * 90 + 128
        picture = np.broadcast_to(waves if index % 2 else waves[:, None], (SIDE, SIDE))[..., None]
        noisy = np.clip(picture + rng.integers(-60, 60, (SIDE, SIDE, 3)), 0, 255).astype(np.uint8)
        path = folder / ("down" if index % 2 else "across") / f"{index:06d}.jpg"
        path.write_bytes(simplejpeg.encode_jpeg(noisy, quality=80))

    with ThreadPoolExecutor() as threads:
        for first in range(0, count, _WRITTEN_AT_A_TIME):
            last = min(first + _WRITTEN_AT_A_TIME, count)
            list(threads.map(write, range(first, last)))
            progress(last - first)


def make_table(path: Path, nbytes: int, progress: Callable[[int], None]) -> int:
    """A CSV file of about `nbytes`: 40 numbers a row and a label they decide. Returns the number of rows.

    One chunk of rows is made and written over and over: writing numbers as text is slow, and the jobs cannot tell.
    """
    rng = np.random.default_rng(1)
    x = rng.standard_normal((CHUNK_ROWS, FEATURES)).astype(np.float32)
    label = (x[:, :5].sum(axis=1) + rng.normal(0, 0.5, CHUNK_ROWS) > 0).astype(np.int8)
    table = pa.table({**{f"f{i}": x[:, i] for i in range(FEATURES)}, "label": label})
    head, body = pa.BufferOutputStream(), pa.BufferOutputStream()
    pyarrow.csv.write_csv(table.slice(0, 0), head)
    pyarrow.csv.write_csv(table, body, pyarrow.csv.WriteOptions(include_header=False))
    chunk, rows = body.getvalue(), 0
    with path.open("wb") as file:
        file.write(head.getvalue())
        while file.tell() < nbytes:
            file.write(chunk)
            rows += CHUNK_ROWS
            progress(len(chunk))
    return rows
