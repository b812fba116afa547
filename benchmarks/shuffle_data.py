"""Rows sorted by class in every format, for the benchmark of shuffles.

Covers: making the rows, writing them, reading them as a user would, which row of the data a row of a batch is.
Does not cover: what is measured (shuffle_accuracy.py, shuffle_speed.py, shuffle_picture.py).
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import machine

FEATURES, CLASSES = 20, 10
NAMES = [f"x{i}" for i in range(FEATURES)]
BATCH = 256
CSV_FILES = 16
TAR_PART = 4
"""One row in so many stands in the tar: a sample of two members takes 1 KB of it, whatever its numbers take."""

KINDS = (
    "csv",
    "csv 16 files",
    "csv.gz",
    "jsonl",
    "text",
    "parquet 1000 groups",
    "parquet 8 groups",
    "parquet 1 group",
    "hdf5",
    "zarr",
    "tfrecord",
    "sql",
    "tar.gz",
)
OLD_WINDOW = "22MB"
"""The window that shuffles had before they mixed the whole dataset."""


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

    made = folder / f"made-{count}"
    if made.exists():
        return
    (folder / "csv").mkdir(parents=True, exist_ok=True)
    x, y = rows_of(count, 0, True)
    _write_zarr(folder, x, y)
    _write_tar(folder / "a.tar.gz", x, y)
    table = pa.table({name: x[:, i] for i, name in enumerate(NAMES)} | {"y": y})
    pacsv.write_csv(table, folder / "a.csv")
    for number in range(CSV_FILES):
        first, last = count * number // CSV_FILES, count * (number + 1) // CSV_FILES
        pacsv.write_csv(table.slice(first, last - first), folder / "csv" / f"{number:02d}.csv")
    with gzip.open(folder / "a.csv.gz", "wb", compresslevel=1) as file:
        file.write((folder / "a.csv").read_bytes())
    _write_lines(folder, x, y)
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
    made.touch()


def _write_tar(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    """Some of the rows, a sample of an array and a class each."""
    with tarfile.open(path, "w:gz", compresslevel=1) as shard:
        for number in range(0, len(x), TAR_PART):
            array = io.BytesIO()
            np.save(array, x[number])
            for name, data in (("npy", array.getvalue()), ("cls", str(y[number]).encode())):
                member = tarfile.TarInfo(f"{number:08d}.{name}")
                member.size = len(data)
                shard.addfile(member, io.BytesIO(data))


def _write_zarr(folder: Path, x: np.ndarray, y: np.ndarray) -> None:
    """Compressed chunks."""
    import zarr

    group = zarr.open_group(str(folder / "a.zarr"), mode="w")
    group.create_array("x", data=x, chunks=(4096, FEATURES))
    group.create_array("y", data=y, chunks=(4096,))


def _write_lines(folder: Path, x: np.ndarray, y: np.ndarray) -> None:
    """JSON lines; and lines of a class and its numbers, as a text with labels would be."""
    json_form = "{" + ", ".join(f'"{name}": %.5f' for name in NAMES) + ', "y": %d}\n'
    text_form = "%d" + " %.5f" * FEATURES + "\n"
    with (
        open(folder / "a.jsonl", "w", encoding="utf-8") as lines,
        open(folder / "a.txt", "w", encoding="utf-8") as text,
    ):
        for row, label in zip(x.tolist(), y.tolist(), strict=True):
            lines.write(json_form % (*row, label))
            text.write(text_form % (label, *row))


def _write_sql(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    import sqlite3

    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    columns = ", ".join(f"{name} real" for name in NAMES)
    connection.execute(f"create table t (id integer primary key, {columns}, y integer)")
    marks = ", ".join("?" * (FEATURES + 2))
    rows = ((i, *row, label) for i, (row, label) in enumerate(zip(x.tolist(), y.tolist(), strict=True)))
    connection.executemany(f"insert into t values ({marks})", rows)
    connection.commit()
    connection.close()


def read(folder: Path, kind: str) -> Any:
    """The dataset that a user would write."""
    import penstock as ps

    columns: dict[str, Any] = {"features": NAMES, "label": "y"}
    ways: dict[str, Callable[[], Any]] = {
        "csv": lambda: ps.read_csv(folder / "a.csv", **columns),
        "csv 16 files": lambda: ps.read_csv(folder / "csv", **columns),
        "csv.gz": lambda: ps.read_csv(folder / "a.csv.gz", **columns),
        "jsonl": lambda: ps.read_json(folder / "a.jsonl", **columns),
        "text": lambda: ps.read_text(folder / "a.txt"),
        "hdf5": lambda: ps.read_hdf5(folder / "a.h5", x="x", y="y"),
        "zarr": lambda: ps.read_zarr(folder / "a.zarr", x="x", y="y"),
        "tfrecord": lambda: ps.read_tfrecords(folder / "a.tfrecord", features=["x", "y"], label="y"),
        "sql": lambda: ps.read_sql(f"sqlite:///{folder}/a.db", "t", partition_on="id", **columns),
        "tar.gz": lambda: ps.read_webdataset(folder / "a.tar.gz"),
    }
    if kind.startswith("parquet"):
        return ps.read_parquet(folder / f"a{kind.split()[1]}.parquet", **columns)
    return ways[kind]()


def shuffled(folder: Path, kind: str, mode: str, seed: int) -> Any:
    """The shuffle that is asked for: now's default, an exact one, or, as before, windows of neighbouring units."""
    from penstock.core.wrapped_source import WrappedUnits
    from penstock.dataset import Dataset
    from penstock.plan.steps import Node, Read

    ds = read(folder, kind)
    if mode == "now":
        return ds.shuffle(seed=seed)
    if mode == "exact":
        return ds.shuffle(seed=seed, exact=True)

    def without_pieces(node: Node) -> Node:
        if isinstance(node.step, Read):
            return Node(Read(WrappedUnits(node.step.source)))  # type: ignore[arg-type]
        return Node(node.step, tuple(without_pieces(child) for child in node.inputs))

    return Dataset(without_pieces(ds.node)).shuffle(seed=seed, window=OLD_WINDOW)


def place(machine: dict[str, Any]) -> str:
    """Where something was measured, as a sentence."""
    cpu, ram, date = machine["cpu"], machine["ram_gb"], machine["date"]
    return f"{machine['cores']} cores, {cpu}, {ram:g} GB, Python {machine['python']}, {date}."


def keep(path: Path, head: dict[str, Any], kind: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Put one reader's numbers to those measured before at the same size."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if {key: found.get(key) for key in head} != head:
        found = {**head, "kinds": {}}
    found["kinds"][kind] = entry
    found["machine"] = machine()
    path.write_text(json.dumps(found, indent=1) + "\n")
    return found


def rows_in(batch: Any) -> int:
    """Rows of a batch, whatever the reader gives."""
    if isinstance(batch, tuple):
        return len(batch[1])
    return len(batch["text"] if "text" in batch else batch["cls"])


def numbers_of(batch: Any) -> tuple[np.ndarray, np.ndarray]:
    """Features and classes of a batch."""
    if isinstance(batch, tuple):
        x, y = batch
    elif "text" in batch:
        values = np.array([line.split() for line in batch["text"]], np.float32)
        x, y = values[:, 1:], values[:, 0]
    else:
        x, y = batch["npy"], batch["cls"]
    y = np.asarray(y).reshape(-1).astype(np.int64)
    return np.asarray(x, np.float32).reshape(len(y), FEATURES), y


class RowNumbers:
    """Which row of the data has these features: by their first three numbers, which no two rows share."""

    def __init__(self, count: int, every: int = 1) -> None:
        keys = _keys(rows_of(count, 0, True)[0][::every])
        self._order = np.argsort(keys)
        self._keys = keys[self._order]
        self.total = len(keys)

    def of(self, x: np.ndarray) -> np.ndarray:
        """Row numbers; of rows that are alike in these numbers, one."""
        at = np.searchsorted(self._keys, _keys(x))
        if not np.array_equal(self._keys[np.minimum(at, self.total - 1)], _keys(x)):
            raise ValueError("a batch has rows that are not in the data")
        return np.asarray(self._order[at])


def _keys(x: np.ndarray) -> np.ndarray:
    numbers = x[:, :3].astype(np.float32) + np.float32(0)  # SQLite keeps no -0.0
    bits = numbers.view(np.uint32).astype(np.uint64)
    with np.errstate(over="ignore"):
        keys = bits[:, 0] * np.uint64(0x9E3779B97F4A7C15) ^ bits[:, 1] * np.uint64(0xBF58476D1CE4E5B9)
        return np.asarray(keys ^ bits[:, 2] * np.uint64(0x94D049BB133111EB))
