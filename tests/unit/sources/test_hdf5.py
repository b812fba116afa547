"""read_hdf5: every layout gives the same rows as h5py, and damage is named."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from penstock.core.block import Block, to_numpy
from penstock.core.errors import BadData, InvalidInput, NotFound, SchemaChanged
from penstock.core.source import RowSource, UnitSource
from penstock.read.hdf5 import read_hdf5
from penstock.sources.hdf5 import chunks as hdf5_chunks

LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunked": {"chunks": (64, 6, 5)},
    "tiled": {"chunks": (50, 4, 3)},
    "gzip": {"chunks": (64, 6, 5), "compression": "gzip"},
    "gzip+shuffle": {"chunks": (37, 6, 5), "compression": "gzip", "shuffle": True},
    "gzip tiled": {"chunks": (50, 4, 2), "compression": "gzip", "shuffle": True},
    "lzf": {"chunks": (64, 6, 5), "compression": "lzf"},
    "fletcher32": {"chunks": (64, 6, 5), "fletcher32": True},
}


def read_all(source: Any) -> Block:
    if isinstance(source, RowSource):
        return source.decode(source.fetch(np.arange(source.num_rows())))
    return Block.concat([b for unit in range(source.num_units()) for b in source.open(unit)])


def write(path: Path, **datasets: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, data in datasets.items():
            file.create_dataset(name.replace("__", "/"), data=data)
    return path


@pytest.mark.parametrize("layout", LAYOUTS, ids=LAYOUTS.keys())
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<i2", "u1", "bool", "<c8"])
def test_every_layout_and_dtype_reads_as_h5py_does(tmp_path: Path, layout: str, dtype: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("penstock.sources.hdf5.source.BLOCK_NBYTES", 20_000)
    data = (np.random.default_rng(3).random((301, 6, 5)) * 100).astype(dtype)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=data, **LAYOUTS[layout])
        file.create_dataset("y", data=np.arange(301))
    block = read_all(read_hdf5(tmp_path / "a.h5", x="x", y="y").node.step.source)
    assert block.tree == ("x", "y")
    assert block.columns["x"].dtype == data.dtype.newbyteorder("=")
    np.testing.assert_array_equal(block.columns["x"], data)
    np.testing.assert_array_equal(block.columns["y"], np.arange(301))


def test_rows_never_written_have_the_fill_value(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, options in {"plain": {}, "packed": {"compression": "gzip"}}.items():
            node = file.create_dataset(name, (100, 4), "f4", chunks=(8, 4), fillvalue=-7, **options)
            node[40:50] = 1
    block = read_all(read_hdf5(tmp_path / "a.h5").node.step.source)
    expected = np.full((100, 4), -7, "f4")
    expected[40:50] = 1
    np.testing.assert_array_equal(block.columns["plain"], expected)
    np.testing.assert_array_equal(block.columns["packed"], expected)


def test_several_files_are_one_and_rows_come_in_any_order(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 255, (90, 40, 40, 3), np.uint8)
    for i in range(3):
        write(tmp_path / f"{i}.h5", images=data[i * 30 : i * 30 + 30], labels=np.arange(i * 30, i * 30 + 30))
    source = read_hdf5(tmp_path, x="images", y="labels").node.step.source
    assert isinstance(source, RowSource)
    rows = np.array([89, 0, 1, 2, 30, 29, 60, 61, 5])
    fetched = source.fetch(rows)
    block = source.decode(fetched)
    np.testing.assert_array_equal(block.columns["x"], data[rows])
    np.testing.assert_array_equal(block.columns["y"], rows)
    assert block.where(0) == f"{tmp_path}/2.h5, row 29"
    out = {f.name: np.empty((len(rows), *f.shape), f.dtype) for f in source.schema()}
    source.decode_into(fetched, out)
    np.testing.assert_array_equal(out["x"], data[rows])


def test_small_rows_are_read_in_stretches_unless_rows_are_asked_for(tmp_path: Path) -> None:
    data = np.random.default_rng(0).random((500, 10), np.float32)
    path = write(tmp_path / "a.h5", x=data)
    assert isinstance(read_hdf5(path, x="x").node.step.source, UnitSource)
    source = read_hdf5(path, x="x", access="rows").node.step.source
    rows = np.random.default_rng(1).permutation(500)
    np.testing.assert_array_equal(source.decode(source.fetch(rows)).columns["x"], data[rows])


def test_each_chunk_is_inflated_once_per_epoch(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("penstock.sources.hdf5.source.BLOCK_NBYTES", 10_000)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(4000.0).reshape(1000, 4), chunks=(20, 4), compression="gzip")
        file.create_dataset("y", data=np.arange(1000), chunks=(50,), compression="gzip")
    inflated: list[int] = []
    plain = hdf5_chunks.RowReader._inflate
    monkeypatch.setattr(
        hdf5_chunks.RowReader,
        "_inflate",
        lambda self, data, offset: inflated.append(offset) or plain(self, data, offset),
    )
    source = read_hdf5(tmp_path / "a.h5", x="x", y="y").node.step.source
    assert source.num_units() > 3
    read_all(source)
    assert len(inflated) == len(set(inflated)) == 50 + 20


def test_text_bytes_and_lists_of_open_length(tmp_path: Path) -> None:
    words = ["", "a", "žluťoučký", "x" * 1000]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("open", data=words, dtype=h5py.string_dtype())
        file.create_dataset("fixed", data=np.array([w.encode() for w in words], "S1000"))
        node = file.create_dataset("lists", (4,), h5py.vlen_dtype(np.int32))
        for i in range(4):
            node[i] = np.arange(i)
    source = read_hdf5(tmp_path / "a.h5").node.step.source
    block = read_all(source)
    assert block.columns["open"].to_pylist() == words
    assert block.columns["fixed"].to_pylist() == words
    assert [v.tolist() for v in to_numpy(block.columns["lists"])] == [[], [0], [0, 1], [0, 1, 2]]
    assert str(source.schema()) == "(fixed: str, lists: int32[?], open: str)"


def test_groups_and_renamed_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", train__x=np.zeros((3, 2)), train__deep__y=np.arange(3), other=np.zeros(9))
    block = read_all(read_hdf5(path, columns={"image": "train/x", "label": "train/deep/y"}).node.step.source)
    assert block.tree == {"image": "image", "label": "label"}
    with pytest.raises(SchemaChanged, match=r"'other' \(9 rows\).*Choose some"):
        read_hdf5(path)
    with pytest.raises(NotFound, match=r"no dataset 'trian/x'. There are: 'other', 'train/deep/y', 'train/x'"):
        read_hdf5(path, x="trian/x")
    with pytest.raises(InvalidInput, match="'train' is a group"):
        read_hdf5(path, x="train")
    with pytest.raises(SchemaChanged, match="'train/x' has 3, 'other' has 9"):
        read_hdf5(path, x="train/x", y="other")


def test_wrong_calls_are_refused_in_one_sentence(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", x=np.zeros((3, 2)), one=np.float64(3))
    for options, message in [
        ({"y": "x"}, "without x"),
        ({"x": "x", "columns": ["x"]}, "not both"),
        ({"columns": "x"}, "list of datasets"),
        ({"columns": []}, "empty"),
        ({"x": "one"}, "single value"),
        ({"x": 3}, "x=3 must be the name of one dataset"),
        ({"x": "x", "y": ["y"]}, r"y=\['y'\] must be the name of one dataset"),
        ({"columns": [1]}, r"not \[1\]"),
        ({"columns": {"a": 1}}, "dict of names"),
        ({"columns": 7}, "not 7"),
        ({"x": "x", "access": "fast"}, "access must be"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            read_hdf5(path, **options)
    for wrong in (None, 5):
        with pytest.raises(InvalidInput, match=f"A path, glob, folder or a list of them is needed, not {wrong}"):
            read_hdf5(wrong)  # type: ignore[arg-type]


def test_chunks_that_follow_each_other_are_read_in_one_call(tmp_path: Path, monkeypatch: Any) -> None:
    data = np.arange(4000.0).reshape(1000, 4)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        node = file.create_dataset("x", (1000, 4), "f8", chunks=(50, 4), fillvalue=7)
        node[:400], node[600:] = data[:400], data[600:]  # four chunks in the middle are never written
    calls = []
    real = hdf5_chunks._pread_into
    monkeypatch.setattr(hdf5_chunks, "_pread_into", lambda *told: (calls.append(told[1]), real(*told))[1])
    data[400:600] = 7
    reader = read_hdf5(tmp_path / "a.h5", x="x").node.step.source.reader(0, "x")
    offsets = reader.addresses.offsets
    breaks = int((np.diff(offsets) != 50 * 4 * 8).sum())
    np.testing.assert_array_equal(reader.read(0, 1000), data)
    assert len(offsets) == 16 and len(calls) <= breaks + 2  # the gap is a break at most once more
    for start, stop in [(0, 1), (49, 51), (120, 377), (390, 401), (399, 601), (401, 599), (999, 1000)]:
        np.testing.assert_array_equal(reader.read(start, stop), data[start:stop])


def test_files_that_disagree_are_named(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", x=np.zeros((3, 2), np.float32))
    write(tmp_path / "b.h5", x=np.zeros((3, 5), np.float32))
    with pytest.raises(
        SchemaChanged, match=r"b.h5: dataset 'x' is x: float32\[5\], but in .*a.h5 it is x: float32\[2\]"
    ):
        read_hdf5(tmp_path, x="x")


def test_files_that_are_not_hdf5_or_cut_short_are_named_or_skipped(tmp_path: Path) -> None:
    good = write(tmp_path / "a.h5", x=np.arange(5000.0))
    (tmp_path / "b.h5").write_bytes(b"hello" * 100)
    (tmp_path / "c.h5").write_bytes(good.read_bytes()[:9000])
    (tmp_path / "d.h5").write_bytes(b"")
    with pytest.raises(BadData, match=r"b.h5: is not an HDF5 file"):
        read_hdf5(tmp_path / "b.h5", x="x")
    with pytest.raises(BadData, match=r"c.h5: .*truncated"):
        read_hdf5(tmp_path / "c.h5", x="x")
    source = read_hdf5(tmp_path, x="x", on_error="skip").node.step.source
    assert source.num_rows() == 5000 and source.on_error.count == 3


def test_a_damaged_chunk_costs_only_its_own_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        node = file.create_dataset(
            "x", data=np.random.default_rng(0).random((1000, 8)), chunks=(50, 8), compression="gzip"
        )
        place = node.id.get_chunk_info(7)
    with open(path, "r+b") as raw:
        raw.seek(place.byte_offset + place.size // 2)
        raw.write(bytes(100))
    source = read_hdf5(path, x="x", on_error="skip").node.step.source
    assert len(read_all(source)) == 950 and source.on_error.count == 1
    assert "rows 350 to 399" in str(source.on_error.last)
    with pytest.raises(BadData, match="rows 350 to 399"):
        read_all(read_hdf5(path, x="x").node.step.source)


def test_a_chunk_that_inflates_without_end_is_stopped_at_its_size(tmp_path: Path) -> None:
    import zlib

    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        node = file.create_dataset("x", (100,), "f4", chunks=(100,), compression="gzip")
        node.id.write_direct_chunk((0,), zlib.compress(bytes(100_000_000)))
    with pytest.raises(BadData, match="401 of 400 bytes"):
        read_all(read_hdf5(path, x="x").node.step.source)


def test_source_travels_and_reads_in_threads(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("penstock.sources.hdf5.source.BLOCK_NBYTES", 4000)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(8000), chunks=(100,), compression="gzip")
        file.create_dataset("t", data=[str(i) for i in range(8000)], chunks=(100,))
    source = pickle.loads(pickle.dumps(read_hdf5(tmp_path / "a.h5").node.step.source))
    blocks: dict[int, Block] = {}

    def work(first: int) -> None:
        for unit in range(first, source.num_units(), 4):
            (blocks[unit],) = source.open(unit)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = Block.concat([blocks[unit] for unit in range(source.num_units())])
    np.testing.assert_array_equal(whole.columns["x"], np.arange(8000))
    assert whole.columns["t"].to_pylist() == [str(i) for i in range(8000)]
    assert source.fingerprint() == read_hdf5(tmp_path / "a.h5").node.step.source.fingerprint()
    assert all(source.unit_nbytes(u) >= blocks[u].nbytes for u in range(source.num_units()))
    source.close()
