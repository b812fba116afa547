"""The default shuffle of every reader mixes the whole dataset: sorted files, batches that look like the whole."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import tarfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

import penstock as ps
from penstock.engine import mixing
from penstock.engine.mixing import uniform_stretches
from penstock.engine.rowstore import source as stored
from penstock.engine.streams import window_shuffle
from penstock.sources.csv import plan as csv_plan
from penstock.sources.text import lines as text_lines
from penstock.sources.tfrecord.write import encode_example, write_records

ROWS = 20_000
BATCH = 256
NOISE = np.random.default_rng(0).normal(size=(ROWS, 4)).round(4)


def csv(folder: Path) -> Any:
    lines = (f"{i},{','.join(map(str, row))}\n" for i, row in enumerate(NOISE.tolist()))
    (folder / "a.csv").write_text("row,a,b,c,d\n" + "".join(lines))
    return ps.read_csv(folder / "a.csv")


def csv_many(folder: Path) -> Any:
    for first in range(0, ROWS, ROWS // 16):
        lines = (f"{i},{','.join(map(str, NOISE[i].tolist()))}\n" for i in range(first, first + ROWS // 16))
        (folder / f"{first:05}.csv").write_text("row,a,b,c,d\n" + "".join(lines))
    return ps.read_csv(folder)


def text(folder: Path) -> Any:
    (folder / "a.txt").write_text("".join(f"{i} {' '.join(map(str, row))}\n" for i, row in enumerate(NOISE.tolist())))
    return ps.read_text(folder / "a.txt")


def csv_gz(folder: Path) -> Any:
    csv(folder)
    (folder / "b.csv.gz").write_bytes(gzip.compress((folder / "a.csv").read_bytes(), 1))
    return ps.read_csv(folder / "b.csv.gz")


def jsonl(folder: Path) -> Any:
    lines = (json.dumps({"row": i, "x": row}) + "\n" for i, row in enumerate(NOISE.tolist()))
    (folder / "a.jsonl").write_text("".join(lines))
    return ps.read_json(folder / "a.jsonl")


def table() -> pa.Table:
    return pa.table({"row": np.arange(ROWS), **{name: NOISE[:, i] for i, name in enumerate("abcd")}})


def parquet_8(folder: Path) -> Any:
    pq.write_table(table(), folder / "a.parquet", row_group_size=ROWS // 8)
    return ps.read_parquet(folder / "a.parquet")


def parquet_1(folder: Path) -> Any:
    pq.write_table(table(), folder / "a.parquet", row_group_size=ROWS)
    return ps.read_parquet(folder / "a.parquet")


def parquet_500(folder: Path) -> Any:
    pq.write_table(table(), folder / "a.parquet", row_group_size=ROWS // 500)
    return ps.read_parquet(folder / "a.parquet")


def parquet_1000(folder: Path) -> Any:
    pq.write_table(table(), folder / "a.parquet", row_group_size=ROWS // 1000)
    return ps.read_parquet(folder / "a.parquet")


def parquet_400_columns(folder: Path) -> Any:
    columns = {f"x{i}": np.full(ROWS, i, np.float32) for i in range(400)}
    pq.write_table(pa.table({"row": np.arange(ROWS), **columns}), folder / "a.parquet", row_group_size=ROWS // 8)
    return ps.read_parquet(folder / "a.parquet")


def parquet_nested(folder: Path) -> Any:
    nested = table().append_column("tags", pa.array([[i, i + 1] for i in range(ROWS)]))
    pq.write_table(nested, folder / "a.parquet", row_group_size=ROWS // 8)
    return ps.read_parquet(folder / "a.parquet")


def hdf5(folder: Path) -> Any:
    with h5py.File(folder / "a.h5", "w") as file:
        for name, values in (("row", np.arange(ROWS)), ("x", NOISE)):
            chunks = (500, *values.shape[1:])
            file.create_dataset(name, data=values, chunks=chunks, compression="gzip", compression_opts=1)
    return ps.read_hdf5(folder / "a.h5", columns=["row", "x"])


def zarr_store(folder: Path) -> Any:
    group = zarr.open_group(folder / "a.zarr", mode="w")
    group.create_array("row", data=np.arange(ROWS), chunks=(500,))
    group.create_array("x", data=NOISE, chunks=(500, 4))
    return ps.read_zarr(folder / "a.zarr", columns=["row", "x"])


def sql(folder: Path) -> Any:
    connection = sqlite3.connect(folder / "a.db")
    connection.execute("create table t (row integer primary key, a real, b real, c real, d real)")
    rows = ((i, *row) for i, row in enumerate(NOISE.tolist()))
    connection.executemany("insert into t values (?, ?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()
    return ps.read_sql(f"sqlite:///{folder}/a.db", "t", partition_on="row", partitions=8)


def tfrecord(folder: Path) -> Any:
    examples = [encode_example({"row": np.array([i]), "x": row.astype(np.float32)}) for i, row in enumerate(NOISE)]
    write_records(str(folder / "a.tfrecord"), examples)
    return ps.read_tfrecords(folder / "a.tfrecord")


def tar_gz(folder: Path) -> Any:
    with tarfile.open(folder / "a.tar.gz", "w:gz", compresslevel=1) as shard:
        for i in range(0, ROWS, 4):  # small samples are slow to pack
            data = json.dumps({"row": i}).encode()
            member = tarfile.TarInfo(f"{i:06}.json")
            member.size = len(data)
            shard.addfile(member, io.BytesIO(data))
    return ps.read_webdataset(folder / "a.tar.gz")


READ = [
    csv, csv_many, csv_gz, jsonl, text, parquet_8, parquet_1, parquet_500, parquet_1000, parquet_400_columns,
    parquet_nested, hdf5, zarr_store, sql, tfrecord, tar_gz,
]  # fmt: skip


def row_numbers(batch: Any) -> np.ndarray:
    if isinstance(batch, dict) and "json" in batch:
        return np.array([sample["row"] for sample in batch["json"]])
    if isinstance(batch, dict) and "text" in batch:
        return np.array([int(line.split()[0]) for line in batch["text"]])
    return np.asarray(batch["row"]).reshape(-1).astype(np.int64)


def coverage(rows: np.ndarray, total: int) -> list[float]:
    """Of each batch, the distinct hundredths of the dataset among its rows, against a uniform shuffle."""
    batches = [rows[at : at + BATCH] for at in range(0, len(rows) - BATCH + 1, BATCH)]
    return [len(np.unique(batch * 100 // total)) / uniform_stretches(total) for batch in batches]


def small_scale(ds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the data were much larger than a window: ranges, blocks and windows are scaled down."""
    monkeypatch.setattr(window_shuffle, "WINDOW_NBYTES", 400_000)
    monkeypatch.setattr(mixing, "BLOCK_NBYTES", 50_000)
    monkeypatch.setattr(stored, "BLOCK_NBYTES", 50_000)
    monkeypatch.setattr(csv_plan, "RANGE_NBYTES", 64_000)
    monkeypatch.setattr(text_lines, "RANGE_NBYTES", 64_000)
    if hasattr(ds.node.step.source, "files") and hasattr(ds.node.step.source.files, "range_nbytes"):
        ds.node.step.source.files.range_nbytes = 64_000


@pytest.mark.parametrize("write", READ, ids=lambda write: write.__name__)
def test_batches_look_like_the_whole(write, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    ds = write(tmp_path)
    small_scale(ds, monkeypatch)
    shuffled = ds.shuffle(seed=1)
    told = shuffled.shuffle_quality()
    rows = np.concatenate([row_numbers(batch) for batch in shuffled.batch(BATCH)])
    assert len(np.unique(rows)) == len(rows) >= ROWS // 4
    found = coverage(np.argsort(np.argsort(rows)), len(rows))
    tenth = max(1, len(found) // 10)
    assert np.mean(found) >= 0.95
    assert min(np.mean(found[at : at + tenth]) for at in range(0, len(found) - tenth + 1, tenth)) >= 0.85
    assert told.coverage >= 0.9


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("write", [csv, parquet_500, hdf5], ids=lambda write: write.__name__)
def test_every_rank_sees_the_whole_in_its_batches(write, world, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    ds = write(tmp_path)
    small_scale(ds, monkeypatch)
    ranks = [ds.shuffle(seed=1).shard(rank, world).batch(BATCH) for rank in range(world)]
    rows = [np.concatenate([row_numbers(batch) for batch in rank]) for rank in ranks]
    assert np.array_equal(np.sort(np.concatenate(rows)), np.arange(ROWS))
    for mine in rows:
        assert np.mean(coverage(mine, ROWS)) >= 0.95
