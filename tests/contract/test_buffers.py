"""What a source fills comes from the buffers it is given, and holds the same rows as new memory."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.core.block import Block
from penstock.core.source import NEW_MEMORY, Buffers, RowSource, Source
from penstock.plan.steps import Read
from penstock.sources.tfrecord.write import encode_example, write_records
from tests.contract.readers import READERS, Reader

ROWS = 40


class Recorded:
    """Buffers that remember what they were asked for."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.leased: list[str] = []

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        self.shapes.append(shape)
        return np.empty(shape, dtype)

    def lease(self, nbytes: int, who: str) -> None:
        self.leased.append(who)


def source_of(ds: ps.Dataset) -> Source:
    node = ds.node
    while not isinstance(node.step, Read):
        (node,) = node.inputs
    return node.step.source


def blocks(source: Source, buffers: Buffers) -> Iterator[Block]:
    if isinstance(source, RowSource):
        yield source.decode(source.fetch(np.arange(source.num_rows())), buffers)
    else:
        for unit in range(source.num_units()):
            yield from source.open(unit, 0, buffers)


def columns(source: Source, buffers: Buffers) -> list[dict[str, list[Any]]]:
    return [{name: list(column) for name, column in block.columns.items()} for block in blocks(source, buffers)]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_every_reader_takes_buffers_and_gives_the_same_rows(reader: Reader, tmp_path: Path) -> None:
    reader.write(tmp_path, ROWS, ())
    source = source_of(reader.read(tmp_path))
    assert str(columns(source, Recorded())) == str(columns(source, NEW_MEMORY))


def csv(folder: Path) -> ps.Dataset:
    (folder / "a.csv").write_text("a,b,y\n" + "".join(f"{i},{i / 2},{i}\n" for i in range(ROWS)))
    return ps.read_csv(str(folder / "a.csv"), label="y")


def quoted_csv(folder: Path) -> ps.Dataset:
    (folder / "a.csv").write_text("a,b,y\n" + "".join(f'{i},{i / 2},"{i}"\n' for i in range(ROWS)))
    return ps.read_csv(str(folder / "a.csv"), label="y")


def json_lines(folder: Path) -> ps.Dataset:
    (folder / "a.jsonl").write_text("".join(f'{{"a":{i}.5,"b":{i}.25}}\n' for i in range(ROWS)))
    return ps.read_json(str(folder / "a.jsonl"))


def parquet(folder: Path) -> ps.Dataset:
    pq.write_table(pa.table({"a": np.arange(ROWS), "b": np.arange(ROWS), "y": np.arange(ROWS)}), folder / "a.parquet")
    return ps.read_parquet(str(folder / "a.parquet"), label="y")


def wide_parquet(folder: Path) -> ps.Dataset:
    table = pa.table({f"c{i}": np.arange(8000, dtype=np.float32) for i in range(10)})
    pq.write_table(table, folder / "a.parquet")
    return ps.read_parquet(str(folder / "a.parquet"), features=table.column_names)


def hdf5(folder: Path) -> ps.Dataset:
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(ROWS), chunks=(8,))
    return ps.read_hdf5(str(folder / "a.h5"), x="x", access="blocks")


@pytest.mark.parametrize("make", [csv, quoted_csv, json_lines, parquet, wide_parquet, hdf5])
def test_large_arrays_come_from_the_buffers(make: Any, tmp_path: Path) -> None:
    source, mine = source_of(make(tmp_path)), Recorded()
    total = sum(block.nrows for block in blocks(source, mine))
    assert total >= ROWS and any(max(shape) >= total for shape in mine.shapes)


def jpeg() -> bytes:
    return bytes(cv2.imencode(".jpg", np.zeros((64, 48, 3), np.uint8))[1])


def images(folder: Path) -> ps.Dataset:
    (folder / "a.jpg").write_bytes(jpeg())
    return ps.read_images(str(folder), size=8)


def unsized_images(folder: Path) -> ps.Dataset:
    (folder / "a.jpg").write_bytes(jpeg())
    return ps.read_images(str(folder))


def tar(folder: Path) -> ps.Dataset:
    with tarfile.open(folder / "a.tar", "w") as file:
        member = tarfile.TarInfo("0.jpg")
        member.size = len(jpeg())
        file.addfile(member, io.BytesIO(jpeg()))
    return ps.read_webdataset(str(folder / "a.tar"), size=8)


def records(folder: Path) -> ps.Dataset:
    write_records(folder / "a.tfrecord", [encode_example({"image": [jpeg()]})])
    return ps.read_tfrecords(str(folder / "a.tfrecord"), images="image", size=8)


@pytest.mark.parametrize("make", [images, unsized_images, tar, records])
def test_a_decoders_own_buffers_are_paid_by_the_run_that_first_needs_them(make: Any, tmp_path: Path) -> None:
    source, mine = source_of(make(tmp_path)), Recorded()
    with ThreadPoolExecutor(1) as fresh:  # a thread that has decoded before has its buffers already
        fresh.submit(lambda: list(blocks(source, mine))).result()
    assert set(mine.leased) == {"decode"}
