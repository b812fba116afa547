"""Rows sorted by class in every format, for the benchmark of shuffles.

Covers: making the rows, writing them, reading them as a user would.
Does not cover: what is measured (shuffle_quality.py).
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

FEATURES, CLASSES = 20, 10
NAMES = [f"x{i}" for i in range(FEATURES)]


def rows_of(count: int, seed: int, sorted_by_class: bool) -> tuple[np.ndarray, np.ndarray]:
    """Points around ten centres, near enough to each other that a model has something to learn."""
    centres = np.random.default_rng(7).normal(size=(CLASSES, FEATURES))
    random = np.random.default_rng(seed)
    y = random.integers(0, CLASSES, count)
    y = np.sort(y) if sorted_by_class else y
    return (0.35 * centres[y] + random.normal(size=(count, FEATURES))).round(5).astype(np.float32), y


def write_data(folder: Path, count: int) -> None:
    """The sorted rows in every format."""
    import h5py
    import pyarrow as pa
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq

    from penstock.sources.tfrecord.write import encode_example, write_records

    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "made").exists() and (folder / "a.zarr").exists():
        return
    x, y = rows_of(count, 0, True)
    _write_zarr_and_text(folder, x, y)
    table = pa.table({name: x[:, i] for i, name in enumerate(NAMES)} | {"y": y})
    pacsv.write_csv(table, folder / "a.csv")
    with gzip.open(folder / "a.csv.gz", "wb", compresslevel=1) as file:
        file.write((folder / "a.csv").read_bytes())
    with open(folder / "a.jsonl", "w", encoding="utf-8") as lines:
        for row, label in zip(x.tolist(), y.tolist(), strict=True):
            lines.write(json.dumps(dict(zip(NAMES, row, strict=True)) | {"y": label}) + "\n")
    for groups in (1, 8, 1000):
        pq.write_table(table, folder / f"a{groups}.parquet", row_group_size=-(-count // groups))
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("x", data=x, chunks=(4096, FEATURES), compression="gzip", compression_opts=1)
        file.create_dataset("y", data=y, chunks=(4096,), compression="gzip", compression_opts=1)
    write_records(
        str(folder / "a.tfrecord"),
        (encode_example({"x": row, "y": np.array([label])}) for row, label in zip(x, y, strict=True)),
    )
    _write_sql(folder / "a.db", x, y)
    (folder / "made").touch()


def _write_zarr_and_text(folder: Path, x: np.ndarray, y: np.ndarray) -> None:
    """Compressed chunks; and lines of a class and its numbers, as a text with labels would be."""
    import zarr

    group = zarr.open_group(str(folder / "a.zarr"), mode="w")
    group.create_array("x", data=x, chunks=(4096, FEATURES))
    group.create_array("y", data=y, chunks=(4096,))
    with open(folder / "a.txt", "w", encoding="utf-8") as lines:
        for row, label in zip(x.tolist(), y.tolist(), strict=True):
            lines.write(f"{label} {' '.join(map(str, row))}\n")


def _write_sql(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    import sqlite3

    connection = sqlite3.connect(path)
    columns = ", ".join(f"{name} real" for name in NAMES)
    connection.execute(f"create table t (id integer primary key, {columns}, y integer)")
    marks = ", ".join("?" * (FEATURES + 2))
    rows = ((i, *row, label) for i, (row, label) in enumerate(zip(x.tolist(), y.tolist(), strict=True)))
    connection.executemany(f"insert into t values ({marks})", rows)
    connection.commit()
    connection.close()


def read(folder: Path, kind: str) -> Any:
    """The dataset of (features, label) that a user would write."""
    import penstock as ps

    if kind in ("csv", "csv.gz"):
        return ps.read_csv(folder / f"a.{kind}", features=NAMES, label="y")
    if kind == "jsonl":
        return ps.read_json(folder / "a.jsonl", features=NAMES, label="y")
    if kind.startswith("parquet"):
        return ps.read_parquet(folder / f"a{kind.split()[1]}.parquet", features=NAMES, label="y")
    if kind == "hdf5":
        return ps.read_hdf5(folder / "a.h5", x="x", y="y")
    if kind == "zarr":
        return ps.read_zarr(folder / "a.zarr", x="x", y="y")
    if kind == "text":
        return ps.read_text(folder / "a.txt")
    if kind == "tfrecord":
        return ps.read_tfrecords(folder / "a.tfrecord", features=["x", "y"], label="y")
    return ps.read_sql(f"sqlite:///{folder}/a.db", "t", partition_on="id", features=NAMES, label="y")
