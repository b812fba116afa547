"""Examples in the documents and docstrings run."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/data-path.md", "docs/memory.md", "docs/readers.md", "docs/packing.md", "docs/bench.md"]
MODULES = [
    "penstock.dataset", "penstock.read.arrays", "penstock.read.csv", "penstock.read.generator", "penstock.read.images",
    "penstock.read.named", "penstock.read.parquet", "penstock.read.json", "penstock.read.text", "penstock.read.hdf5",
]  # fmt: skip


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
    monkeypatch.chdir(tmp_path)
    from penstock.memory import limits

    before = list(limits._in_force)
    yield
    limits._in_force[:] = before


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
