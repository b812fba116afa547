"""Examples in the documents and docstrings run."""

from __future__ import annotations

import doctest
import importlib
import re
import sqlite3
from pathlib import Path

import cv2
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import zarr

import penstock as ps

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md", "docs/data-path.md", "docs/memory.md", "docs/readers.md", "docs/packing.md", "docs/shuffle.md",
    "docs/bench.md", "docs/prepare.md",
]  # fmt: skip
PACKAGE = ROOT / "penstock"
SKIPPED = "# doctest: +SKIP"  # needs a model of a framework
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in PACKAGE.rglob("*.py")
    if re.search(r"^ *>>> ", path.read_text(), flags=re.MULTILINE)
)


@pytest.fixture
def data_folder(tmp_path, monkeypatch):
    """What the examples read."""
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "train" / name).mkdir(parents=True)
        for index in range(20):
            picture = rng.integers(0, 255, (40, 50, 3), dtype=np.uint8)
            assert cv2.imwrite(str(tmp_path / "train" / name / f"{index}.jpg"), picture)
    columns = {n: rng.standard_normal(500).astype(np.float32) for n in "abcd"}
    table = pa.table({**columns, "label": rng.integers(0, 2, 500)})
    pyarrow.csv.write_csv(table, tmp_path / "train.csv")
    pyarrow.parquet.write_table(table, tmp_path / "train.parquet", row_group_size=100)
    write_small(tmp_path)
    monkeypatch.chdir(tmp_path)
    from penstock.memory import limits

    before = list(limits._in_force)
    yield
    limits._in_force[:] = before


def write_small(folder: Path) -> None:
    """A few rows of each kind of storage."""
    x, y = np.arange(8 * 64, dtype=np.uint8).reshape(8, 8, 8), np.arange(8)
    np.save(folder / "x.npy", np.zeros((5, 3)))
    np.save(folder / "y.npy", np.zeros(5))
    (folder / "corpus.txt").write_text("one line\nanother line\nthe last\n")
    (folder / "logs.jsonl").write_text("".join(f'{{"user": {{"id": {i}}}, "text": "hello"}}\n' for i in range(5)))
    (folder / "shards").mkdir()
    with h5py.File(folder / "shards" / "0.h5", "w") as file:
        file["images"], file["labels"] = x, y
    group = zarr.open_group(folder / "train.zarr", mode="w")
    group.create_array("images", data=x)
    group.create_array("labels", data=y)
    connection = sqlite3.connect(folder / "points.db")
    connection.execute("create table points (id integer primary key, x real, y real)")
    connection.executemany("insert into points values (?, ?, ?)", [(i, i / 2, i / 4) for i in range(10)])
    connection.commit()
    connection.close()


@pytest.mark.real_time
@pytest.mark.parametrize("page", PAGES)
def test_examples_of_a_page_run(page, data_folder):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    assert blocks
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), namespace)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name, data_folder):
    found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0
    assert found.attempted or SKIPPED in Path(importlib.import_module(name).__file__ or "").read_text()


def test_every_public_function_and_class_has_an_example():
    public = [thing for name in ps.__all__ if callable(thing := getattr(ps, name)) and not is_error(thing)]
    assert [shown.__name__ for shown in public if ">>> " not in (shown.__doc__ or "")] == []


def is_error(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, BaseException)
