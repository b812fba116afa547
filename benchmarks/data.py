"""The datasets, made once under .bench/ from fixed seeds and used again.

Covers: photo-like JPEG files, one table as CSV, Parquet, TFRecord and HDF5, a folder of very many names.
Does not cover: measuring. Each maker returns the folder; a folder without its stamp is made anew.

Tables repeat one chunk of rows: writing numbers as text is slow and no reader can tell.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

HOME = Path(__file__).resolve().parent.parent / ".bench"
FEATURES = 40
CHUNK_ROWS = 48 * 1024
CLASSES = 10
NAMES_PER_LINKED_FILE = 20_000
"""File systems allow only so many hard links to one file (65,000 on ext4)."""


def made(name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name`, filled by `make` unless that has been done."""
    folder = HOME / name
    stamp = folder / ".made"
    if not stamp.exists():
        print(f"  making {name} ...", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make(folder)
        stamp.touch()
    return folder


def photo(seed: int, height: int = 375, width: int = 500) -> bytes:
    """A JPEG of about 83 KB, as hard to decode as a photograph: soft fields, shapes with edges, and noise."""
    import cv2
    import simplejpeg

    rng = np.random.default_rng(seed)
    picture = np.zeros((height, width, 3), np.float32)
    for cells, weight in ((4, 70.0), (12, 40.0), (40, 22.0), (110, 14.0)):
        coarse = rng.normal(0, weight, (cells * height // width + 2, cells + 2, 3)).astype(np.float32)
        picture += cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    picture += 120
    for _ in range(int(rng.integers(5, 12))):
        centre = (int(rng.integers(width)), int(rng.integers(height)))
        colour = rng.uniform(0, 255, 3).tolist()
        cv2.ellipse(picture, centre, rng.integers(10, 90, 2).tolist(), float(rng.uniform(0, 180)), 0, 360, colour, -1)
    picture += rng.normal(0, 9.0, picture.shape[:2])[..., None] + rng.normal(0, 2.0, picture.shape)
    pixels = np.clip(picture, 0, 255).astype(np.uint8)
    return bytes(simplejpeg.encode_jpeg(pixels, quality=90, colorsubsampling="420"))


def images(count: int) -> Path:
    """`count` photo-like JPEG files in class folders."""

    def make(folder: Path) -> None:
        for label in range(CLASSES):
            (folder / f"class{label}").mkdir()

        def write(index: int) -> None:
            (folder / f"class{index % CLASSES}" / f"{index:06d}.jpg").write_bytes(photo(index))

        with ThreadPoolExecutor() as threads:
            list(threads.map(write, range(count)))

    return made(f"images-{count}", make)


def chunk() -> tuple[np.ndarray, np.ndarray]:
    """The rows that every table repeats: 40 numbers and a label."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((CHUNK_ROWS, FEATURES)).astype(np.float32)
    return x, (x[:, :5].sum(axis=1) > 0).astype(np.int64)


def _arrow() -> Any:
    import pyarrow as pa

    x, y = chunk()
    return pa.table({**{f"f{i}": np.ascontiguousarray(x[:, i]) for i in range(FEATURES)}, "label": y})


def csv(files: int, chunks: int) -> Path:
    """CSV files of `chunks` chunks each (21 MB a chunk)."""
    import pyarrow as pa
    import pyarrow.csv as pc

    def make(folder: Path) -> None:
        table, body = _arrow(), pa.BufferOutputStream()
        pc.write_csv(table, body, pc.WriteOptions(include_header=False))
        text, head = body.getvalue(), ",".join(table.column_names) + "\n"
        for number in range(files):
            with open(folder / f"part-{number:03d}.csv", "wb") as file:
                file.write(head.encode())
                for _ in range(chunks):
                    file.write(text)

    return made(f"csv-{files}x{chunks}", make)


def parquet(files: int, chunks: int) -> Path:
    """Parquet files of `chunks` row groups each (8 MB a row group), as pyarrow writes them."""
    import pyarrow.parquet as pq

    def make(folder: Path) -> None:
        table = _arrow()
        for number in range(files):
            with pq.ParquetWriter(folder / f"part-{number:03d}.parquet", table.schema, use_dictionary=False) as writer:
                for _ in range(chunks):
                    writer.write_table(table, row_group_size=CHUNK_ROWS)

    return made(f"parquet-{files}x{chunks}", make)


def tfrecord(files: int, chunks: int) -> Path:
    """TFRecord files of tf.train.Example: x = 40 floats, y = one integer."""
    from penstock.sources.tfrecord.write import encode_example, frame

    def make(folder: Path) -> None:
        x, y = chunk()
        body = b"".join(frame(encode_example({"x": row, "y": int(label)})) for row, label in zip(x, y))
        for number in range(files):
            with open(folder / f"part-{number:03d}.tfrecord", "wb") as file:
                for _ in range(chunks):
                    file.write(body)

    return made(f"tfrecord-{files}x{chunks}", make)


def tfrecord_images(count: int, files: int = 8) -> Path:
    """The pictures of `images` in TFRecord files: image = JPEG bytes, label = one integer."""
    from penstock.sources.tfrecord.write import encode_example, write_records

    def make(folder: Path) -> None:
        found = sorted(images(count).rglob("*.jpg"))
        for number in range(files):
            records = (
                encode_example({"image": p.read_bytes(), "label": int(p.parent.name[-1])}) for p in found[number::files]
            )
            write_records(str(folder / f"part-{number:03d}.tfrecord"), records)

    return made(f"tfrecord-images-{count}", make)


def hdf5(chunks: int) -> Path:
    """One HDF5 file with datasets x and y, stored in chunks of 4,096 rows, not compressed."""
    import h5py

    def make(folder: Path) -> None:
        x, y = chunk()
        rows = chunks * CHUNK_ROWS
        with h5py.File(folder / "table.h5", "w") as file:
            xs = file.create_dataset("x", (rows, FEATURES), "f4", chunks=(4096, FEATURES))
            ys = file.create_dataset("y", (rows,), "i8", chunks=(4096,))
            for start in range(0, rows, CHUNK_ROWS):
                xs[start : start + CHUNK_ROWS], ys[start : start + CHUNK_ROWS] = x, y

    return made(f"hdf5-{chunks}", make)


def names(count: int, folders: int = 100) -> Path:
    """`count` names in class folders, hard links to a few tiny JPEG files."""

    def make(folder: Path) -> None:
        source = folder / ".linked"
        source.mkdir()
        for number in range(-(-count // NAMES_PER_LINKED_FILE)):
            (source / f"{number}.jpg").write_bytes(photo(number, 32, 32))
        tree = folder / "tree"
        for label in range(folders):
            place = tree / f"class{label:03d}"
            place.mkdir(parents=True)
            for index in range(label, count, folders):
                os.link(source / f"{index // NAMES_PER_LINKED_FILE}.jpg", place / f"picture-{index:08d}.jpg")

    return made(f"names-{count}", make) / "tree"


def growth_images(nbytes: int, most: int) -> Path:
    """At least `nbytes` of JPEG files out of a folder of `most` bytes: copies of 500 pictures that fill the page cache.

    Smaller folders are hard links into the largest, so that the disk holds the pictures once.
    """

    def make(folder: Path) -> None:
        for label in range(CLASSES):
            (folder / f"class{label}").mkdir()
        pictures = [photo(index) for index in range(500)]
        linked = None if nbytes == most else growth_images(most, most)
        written = index = 0
        while written < nbytes:
            data, name = pictures[index % len(pictures)], f"class{index % CLASSES}/{index:06d}.jpg"
            if linked is None:
                (folder / name).write_bytes(data)
            else:
                os.link(linked / name, folder / name)
            written += len(data)
            index += 1

    return made(f"growth-images-{nbytes // 1_000_000}of{most // 1_000_000}MB", make)
