"""Lists of open length within lists of open length: the rows of h5py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import penstock as ps
from penstock.core.errors import InvalidInput, PenstockError, TooLarge

INTEGERS = h5py.vlen_dtype(h5py.vlen_dtype(np.dtype("<i4")))
DEEP = h5py.vlen_dtype(h5py.vlen_dtype(h5py.vlen_dtype(np.dtype("<f8"))))
WORDS = h5py.vlen_dtype(h5py.string_dtype())
RECORDS = h5py.vlen_dtype(np.dtype([("a", "<i4"), ("b", "<f8")]))
ROWS: dict[str, tuple[Any, list[Any]]] = {
    "lists of lists": (INTEGERS, [[[1, 2], [], [3]], [], [[4] * 3000]]),
    "three deep": (DEEP, [[[[0.5], [1.5, 2.5]], []], [[[]]], []]),
    "lists of text": (WORDS, [["one", "zwölf"], [], ["x" * 9000, ""]]),
    "lists of records": (RECORDS, [[{"a": 1, "b": 0.5}, {"a": -2, "b": 7.25}], [], [{"a": 3, "b": 1.0}]]),
}


def objects(row: list[Any], dtype: np.dtype[Any]) -> np.ndarray:
    inner = dtype.metadata["vlen"] if dtype.metadata else None
    if isinstance(inner, np.dtype) and inner.names:
        return np.array([tuple(value.values()) for value in row], inner)
    if inner is None or (isinstance(inner, np.dtype) and inner.kind != "O"):
        return np.array(row, inner)
    out = np.empty(len(row), object)
    for i, value in enumerate(row):
        out[i] = objects(value, inner) if isinstance(inner, np.dtype) and inner.metadata["vlen"] is not str else value
    return out


def written(path: Path, name: str, **how: Any) -> str:
    dtype, rows = ROWS[name]
    with h5py.File(path, "w") as file:
        node = file.create_dataset("x", (len(rows),), dtype=dtype, **how)
        for i, row in enumerate(rows):
            node[i] = objects(row, dtype)
    return str(path)


def plain(value: Any) -> Any:
    return [plain(item) for item in value] if isinstance(value, (list, np.ndarray)) else value


@pytest.mark.parametrize("how", [{}, {"chunks": (2,)}, {"chunks": (2,), "compression": "gzip"}], ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_rows_are_what_was_written(tmp_path, name, how):
    dataset = ps.read_hdf5(written(tmp_path / "a.h5", name, **how), "x")
    assert [plain(row) for row in dataset] == ROWS[name][1]
    assert [plain(batch)[0] for batch in dataset.batch(1)] == ROWS[name][1]


@pytest.mark.parametrize("name", ["lists of lists", "lists of text", "lists of records"])
def test_fields_of_records_are_what_was_written(tmp_path, name):
    dtype, rows = ROWS[name]
    kind = np.dtype([("n", "<i4"), ("word", h5py.string_dtype()), ("v", dtype), ("m", "<f8")])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        node = file.create_dataset("t", (len(rows),), dtype=kind)
        for i, row in enumerate(rows):
            one = np.empty(1, kind)
            one["n"], one["word"], one["m"] = i, "w", i / 2
            one["v"][0] = objects(row, dtype)
            node[i : i + 1] = one
    assert [plain(row) for row in ps.read_hdf5(tmp_path / "a.h5", "t.v")] == rows
    assert list(ps.read_hdf5(tmp_path / "a.h5", "t.m")) == [i / 2 for i in range(len(rows))]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ROWS)
def test_damaged_files_give_rows_or_errors_and_never_hang(tmp_path, name):
    path = Path(written(tmp_path / "a.h5", name))
    whole, rng = path.read_bytes(), np.random.default_rng(3)
    heap = whole.index(b"GCOL")
    for _ in range(60):
        data = bytearray(whole)
        for place in rng.integers(heap, len(data), 3):
            data[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        try:
            assert len(list(ps.read_hdf5(path, "x", on_error="skip"))) <= 3
        except PenstockError as error:
            assert len(str(error)) < 500


def test_lists_that_cannot_fit_are_refused_by_name(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        node = file.create_dataset("x", (1,), dtype=INTEGERS)
        node[0] = objects([np.zeros(15_000_000, "i4")], INTEGERS)
    with ps.limit("180MB"), pytest.raises(TooLarge, match=r"a\.h5: a stretch of lists of open length"):
        source = ps.read_hdf5(path, "x").node.step.source
        list(source.open(0))


def test_lists_of_references_are_refused_by_name(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (2,), dtype=h5py.vlen_dtype(h5py.ref_dtype))
    with pytest.raises(InvalidInput, match=r"a\.h5: dataset 'x' holds .* no array form"):
        ps.read_hdf5(tmp_path / "a.h5", "x")
