"""Types whose bytes in the file are not NumPy's: the rows are those of h5py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import penstock as ps
from penstock.sources.hdf5.survey import survey


def text_type(padding: int) -> Any:
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(8)
    kind.set_strpad(padding)
    return kind


def odd_type(base: Any) -> Any:
    kind = base.copy()
    kind.set_precision(12)
    kind.set_offset(4)
    return kind


def written(path: Path, kind: Any, values: np.ndarray, mtype: Any = None, chunk: int = 0) -> str:
    with h5py.File(path, "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        if chunk:
            plist.set_chunk((chunk,))
            plist.set_deflate(4)
        space = h5py.h5s.create_simple((len(values),))
        node = h5py.h5d.create(file.id, b"x", kind, space, dcpl=plist)
        node.write(h5py.h5s.ALL, h5py.h5s.ALL, values, mtype=mtype)
    return str(path)


def read_by_h5py(path: str) -> list[Any]:
    with h5py.File(path) as file:
        return list(file["x"][()])


@pytest.mark.parametrize("chunk", [0, 2])
@pytest.mark.parametrize("padding", [h5py.h5t.STR_SPACEPAD, h5py.h5t.STR_NULLTERM, h5py.h5t.STR_NULLPAD])
def test_text_of_fixed_length_ends_where_its_padding_says(tmp_path, padding, chunk):
    values = np.array([b"ab cd   ", b"abc\0efg\0", b"x"], "S8")
    path = written(tmp_path / "a.h5", text_type(padding), values, text_type(padding), chunk)
    assert [value.encode() for value in ps.read_hdf5(path, x="x")] == read_by_h5py(path)


@pytest.mark.parametrize("chunk", [0, 2])
@pytest.mark.parametrize("base", [h5py.h5t.STD_I32LE, h5py.h5t.STD_I32BE, h5py.h5t.STD_U16LE])
def test_integers_of_odd_precision_are_converted(tmp_path, base, chunk):
    path = written(tmp_path / "a.h5", odd_type(base), np.array([1, 7, 1000], "i4"), None, chunk)
    assert list(ps.read_hdf5(path, x="x")) == read_by_h5py(path) == [1, 7, 1000]


def test_plain_types_are_still_read_by_address(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for dtype in ("?", "i1", "u2", "<i4", ">i8", "f2", "<f4", ">f8", "c8", "S5"):
            file[f"as {dtype}"] = np.arange(3).astype(dtype)
        file.create_dataset("enum", data=[0, 1, 1], dtype=h5py.enum_dtype({"a": 0, "b": 1}, "i2"))
        names = list(file)
    assert {fact.storage for fact in survey(str(path), {name: name for name in names}).values()} == {"contiguous"}
