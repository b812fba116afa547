"""read_zarr: every layout gives the same rows as zarr itself, resumes anywhere, and damage is named."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from zarr.codecs import ZstdCodec

from penstock.core.block import Block, to_numpy
from penstock.core.errors import BadData, InvalidInput, NotFound, SchemaChanged
from penstock.core.source import RowSource, UnitSource
from penstock.read.zarr import read_zarr

LAYOUTS: dict[str, dict[str, Any]] = {
    "format 2": {"zarr_format": 2},
    "format 3": {},
    "tiled": {"chunks": (50, 4, 3)},
    "plain": {"compressors": None},
    "sharded": {"shards": (120, 6, 5), "chunks": (30, 6, 5)},
}


def read_all(source: Any) -> Block:
    if isinstance(source, RowSource):
        return source.decode(source.fetch(np.arange(source.num_rows())))
    return Block.concat([b for unit in range(source.num_units()) for b in source.open(unit)])


def write(path: Path, *, zarr_format: Any = 3, **arrays: Any) -> Path:
    group = zarr.open_group(str(path), mode="w", zarr_format=zarr_format)
    for name, data in arrays.items():
        group.create_array(name.replace("__", "/"), data=data, chunks=(min(16, len(data)), *data.shape[1:]))
    return path


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<i2", "u1", "bool"])
def test_every_layout_and_dtype_reads_as_zarr_does(tmp_path: Path, layout: str, dtype: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("penstock.sources.zarr.source.BLOCK_NBYTES", 1000)
    data = (np.random.default_rng(3).random((301, 6, 5)) * 100).astype(dtype)
    options = {"chunks": (64, 6, 5), **LAYOUTS[layout]}
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=options.pop("zarr_format", 3))
    group.create_array("x", data=data, **options)
    group.create_array("in/y", data=np.arange(301), chunks=(60,))
    source = read_zarr(tmp_path / "a.zarr", x="x", y="in/y").node.step.source
    block = read_all(pickle.loads(pickle.dumps(source)))
    assert isinstance(source, UnitSource) and source.num_units() > 1 and block.tree == ("x", "y")
    assert block.columns["x"].dtype == data.dtype.newbyteorder("=")
    np.testing.assert_array_equal(block.columns["x"], data)
    np.testing.assert_array_equal(block.columns["y"], np.arange(301))


def test_every_chain_position_resumes_and_a_shuffle_loses_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("penstock.sources.zarr.source.BLOCK_NBYTES", 500)
    path = write(tmp_path / "a.zarr", x=np.arange(200), y=np.arange(200) * 2)
    for access in ("rows", "blocks"):
        ds = read_zarr(path, x="x", y="y", access=access).shuffle(seed=3).batch(16)
        iterator = iter(ds)
        places, whole = [json.dumps(iterator.position)], []
        for x, y in iterator:
            np.testing.assert_array_equal(x * 2, y)
            whole.append(x.tolist())
            places.append(json.dumps(iterator.position))
        flat = [value for batch in whole for value in batch]
        assert sorted(flat) == list(range(200)) != flat
        for done, place in enumerate(places):
            again = read_zarr(path, x="x", y="y", access=access).shuffle(seed=3).batch(16).resume(place)
            assert [x.tolist() for x, _ in again] == whole[done:]


def test_chunks_of_one_large_row_are_rows_and_several_stores_are_one(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 255, (60, 40, 40, 3), np.uint8)
    for i in range(3):
        group = zarr.open_group(str(tmp_path / f"{i}.zarr"), mode="w")
        group.create_array("x", data=data[i * 20 : i * 20 + 20], chunks=(1, 40, 40, 3))
        group.create_array("y", data=np.arange(i * 20, i * 20 + 20), chunks=(1,))
    source = read_zarr(str(tmp_path / "*.zarr"), x="x", y="y").node.step.source
    assert isinstance(source, RowSource) and source.num_rows() == 60
    rows = np.array([59, 0, 1, 20, 19, 40, 0, 5])
    fetched = source.fetch(rows)
    block = source.decode(fetched)
    np.testing.assert_array_equal(block.columns["x"], data[rows])
    np.testing.assert_array_equal(block.columns["y"], rows)
    assert block.where(0) == f"{tmp_path}/2.zarr, row 19"
    out = {f.name: np.empty((len(rows), *f.shape), f.dtype) for f in source.schema()}
    source.decode_into(fetched, out)
    np.testing.assert_array_equal(out["x"], data[rows])


def test_text_bare_arrays_and_missing_chunks(tmp_path: Path) -> None:
    words = np.array([f"wörd {i}" for i in range(50)])
    group = zarr.open_group(str(tmp_path / "t.zarr"), mode="w")
    group.create_array("t", shape=(50,), dtype=str, chunks=(20,))[:] = words.astype(object)
    group.create_array("n", shape=(50, 2), dtype="f4", chunks=(20, 2), fill_value=-7)[20:40] = 1
    block = read_all(read_zarr(tmp_path / "t.zarr").node.step.source)
    assert to_numpy(block.columns["t"]).tolist() == words.tolist()
    assert block.columns["n"][[0, 19, 20, 39, 40]].ravel().tolist() == [-7] * 4 + [1] * 4 + [-7] * 2
    zarr.save_array(str(tmp_path / "bare.zarr"), np.arange(30))
    assert [int(v) for v in read_zarr(tmp_path / "bare.zarr")] == list(range(30))


def test_a_remote_store_is_read_through_the_same_paths() -> None:
    fs = fsspec.filesystem("memory")
    store = zarr.storage.MemoryStore()
    zarr.open_group(store, mode="w").create_array("x", data=np.arange(100), chunks=(30,), compressors=ZstdCodec())
    for key, value in store._store_dict.items():
        fs.pipe(f"/zarrs/a.zarr/{key}", value.to_bytes())
    try:
        assert [int(v) for v in read_zarr("memory://zarrs/a.zarr", x="x")] == list(range(100))
        assert next(iter(read_zarr("memory://zarrs/*.zarr").batch(100)))["x"].tolist() == list(range(100))
    finally:
        fs.rm("/zarrs", recursive=True)


@pytest.mark.parametrize("access", ["rows", "blocks"])
def test_damaged_chunks_are_named_or_skipped(tmp_path: Path, access: Any) -> None:
    path = write(tmp_path / "a.zarr", x=np.arange(64))
    (path / "x" / "c" / "2").write_bytes(b"\x28\xb5\x2f\xfdnot what it was")
    with pytest.raises(BadData, match=r"a\.zarr.* cannot be read"):
        list(read_zarr(path, x="x", access=access))
    ds = read_zarr(path, x="x", access=access, on_error="skip")
    assert [int(v) for v in ds] == [*range(32), *range(48, 64)]
    assert ds.node.step.source.on_error.count == (16 if access == "rows" else 1)


def test_mistakes_are_told_in_one_sentence(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zarr", x=np.arange(20), y=np.arange(10), g__z=np.arange(20))
    for call, kind, message in [
        ({"x": "q"}, NotFound, r"no array 'q'. There are: 'g/z', 'x', 'y'"),
        ({"x": "g"}, InvalidInput, r"'g' is a group. Name an array, such as 'g/z'"),
        ({"x": "x", "y": "y"}, SchemaChanged, r"'x' has 20, 'y' has 10"),
        ({}, SchemaChanged, "differ in length"),
        ({"x": "x", "access": "best"}, InvalidInput, "access must be"),
    ]:
        with pytest.raises(kind, match=message):
            read_zarr(path, **call)
    for missing, message in [
        (tmp_path / "none.zarr", "is no Zarr store"),
        (path / "x" / "zarr.json", "is no Zarr store: it is a file"),
        (str(tmp_path / "*.zar"), "No store matches"),
    ]:
        with pytest.raises(NotFound, match=message):
            read_zarr(missing)
    (path / "x" / "zarr.json").write_text("{")
    with pytest.raises(BadData, match="damaged"):
        read_zarr(path, x="x")
    other = write(tmp_path / "b.zarr", x=np.arange(20.0))
    good = write(tmp_path / "c.zarr", x=np.arange(20))
    with pytest.raises(SchemaChanged, match=r"b\.zarr: array 'x' is x: float64"):
        read_zarr([good, other], x="x")


def test_text_is_read_in_stretches_never_row_by_row(tmp_path: Path) -> None:
    words = np.array(
        [["a", "bcd", "\u00e9"] * 400] * 3
    )  # rows of 4.8 KB, a chunk each: numbers would be read one by one
    array = zarr.create_array(
        tmp_path / "a.zarr", shape=words.shape, dtype=words.dtype, chunks=(1, 1200), zarr_format=2
    )
    array[...] = words
    assert [list(row) for row in read_zarr(tmp_path / "a.zarr")] == words.tolist()
    with pytest.raises(InvalidInput, match="access='rows' is for numbers.*is text"):
        read_zarr(tmp_path / "a.zarr", access="rows")
