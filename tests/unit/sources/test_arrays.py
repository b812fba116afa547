from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from penstock.core.errors import BadData, InvalidInput, NotFound, SchemaChanged
from penstock.core.source import RowSource
from penstock.read.arrays import from_tensor_slices, read_numpy
from penstock.sources.arrays.npy import joined_npy, stored_npz
from penstock.sources.arrays.source import ArraySource, columns_of

ROWS = np.array([3, 0, 3, 7])


def memory(tree: object) -> ArraySource:
    return ArraySource(*columns_of(tree))


def test_arrays_are_held_by_reference() -> None:
    x, y = np.arange(20.0).reshape(10, 2), np.arange(10)
    source = memory((x, {"y": y}))
    assert isinstance(source, RowSource)
    assert source.tree == ("0", {"y": "1.y"}) and source.num_rows() == 10
    assert source.columns["0"] is x and source.columns["1.y"] is y
    block = source.decode(source.fetch(ROWS))
    np.testing.assert_array_equal(block.columns["0"], x[ROWS])
    out = {"0": np.zeros((4, 2)), "1.y": np.zeros(4, np.int64)}
    source.decode_into(source.fetch(ROWS), out)
    np.testing.assert_array_equal(out["0"], x[ROWS])
    assert out["1.y"].tolist() == ROWS.tolist()


def test_frames_tables_lists_and_text() -> None:
    frame = pd.DataFrame({"a": np.arange(10.0), "t": [f"t{i}" for i in range(10)]})
    source = memory((frame, list(range(10))))
    assert source.tree == ({"a": "0.a", "t": "0.t"}, "1")
    assert np.shares_memory(source.columns["0.a"], frame["a"].to_numpy())
    block = source.decode(source.fetch(ROWS))
    assert block.columns["0.t"].to_pylist() == ["t3", "t0", "t3", "t7"]
    assert source.schema()["0.t"].text
    table = memory(pa.table({"a": [1, 2, 3], "l": [[1], [], [2, 3]]}))
    assert table.decode(table.fetch(np.array([2]))).columns["l"].to_pylist() == [[2, 3]]
    assert memory(["a", "b"]).schema()["value"].text
    assert memory(np.array([b"a", b"b"])).schema()["value"].dtype == object


def test_what_cannot_be_sliced_is_told() -> None:
    with pytest.raises(InvalidInput, match=r"'0' has 3, '1' has 2"):
        from_tensor_slices((np.zeros(3), np.zeros(2)))
    with pytest.raises(InvalidInput, match="single value"):
        from_tensor_slices(np.float32(3))
    with pytest.raises(InvalidInput, match="differ in length"):
        from_tensor_slices([[1, 2], [3]])


@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_files_are_joined_and_not_loaded(tmp_path: Path, order: str) -> None:
    whole = np.random.default_rng(0).standard_normal((10, 3, 2)).astype(np.float32)
    for i, part in enumerate((whole[:4], whole[4:])):
        np.save(tmp_path / f"{i}.npy", np.asarray(part, order=order))
    source = ArraySource({"v": joined_npy([str(tmp_path / f"{i}.npy") for i in (0, 1)])}, "v")
    rows = np.array([9, 0, 4, 3, 9])
    block = source.decode(source.fetch(rows))
    np.testing.assert_array_equal(block.columns["v"], whole[rows])
    assert block.where(0).endswith("1.npy, row 5")
    assert source.fetch_nbytes(5) == 5 * (8 + 24)
    copied = pickle.loads(pickle.dumps(source))
    assert len(pickle.dumps(source)) < 2000
    out = {"v": np.zeros((5, 3, 2), np.float32)}
    copied.decode_into(copied.fetch(rows), out)
    np.testing.assert_array_equal(out["v"], whole[rows])


@pytest.mark.parametrize("packed", [False, True])
def test_npz_members_are_read_where_they_lie(tmp_path: Path, packed: bool) -> None:
    x, y = np.arange(30.0).reshape(10, 3), np.arange(10)
    (np.savez_compressed if packed else np.savez)(tmp_path / "t.npz", x=x, y=y)
    found = stored_npz(str(tmp_path / "t.npz"), str(tmp_path / "cache"))
    np.testing.assert_array_equal(found["x"].take(ROWS), x[ROWS])
    assert (found["x"].path == str(tmp_path / "t.npz")) is not packed
    assert len(list((tmp_path / "cache").glob("*"))) == (2 if packed else 0)
    ds = read_numpy(tmp_path / "t.npz", label="y", cache=tmp_path / "cache")
    (batch,) = list(ds.batch(10))
    np.testing.assert_array_equal(batch[0], x)
    assert batch[1].tolist() == y.tolist()
    with pytest.raises(NotFound, match=r"no array 'z'. There are: x, y"):
        read_numpy(tmp_path / "t.npz", features="z", cache=tmp_path / "cache")


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(1000))
    whole = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(whole[:-8])
    with pytest.raises(BadData, match=r"a.npy, byte 8120: the file is cut short"):
        read_numpy(tmp_path / "a.npy")
    (tmp_path / "a.npy").write_bytes(b"nothing of the kind")
    with pytest.raises(BadData, match="not an array file"):
        read_numpy(tmp_path / "a.npy")
    np.save(tmp_path / "o.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
    with pytest.raises(BadData, match="Python objects"):
        read_numpy(tmp_path / "o.npy")
    (tmp_path / "t.npz").write_bytes(b"PK nothing")
    with pytest.raises(BadData, match="not an archive"):
        read_numpy(tmp_path / "t.npz")
    np.savez(tmp_path / "t.npz")
    with pytest.raises(BadData, match=r"t\.npz.*without an array"):
        read_numpy(tmp_path / "t.npz")


def test_an_array_that_claims_more_than_its_archive_holds_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.zeros((10, 4)))
    data = (tmp_path / "t.npz").read_bytes()
    (tmp_path / "t.npz").write_bytes(data.replace(b"(10, 4)", b"(99, 4)"))
    with pytest.raises(BadData, match=r"t\.npz, byte \d+.*cut short"):
        read_numpy(tmp_path / "t.npz")
    np.save(tmp_path / "1.npy", np.zeros((3, 2)))
    np.save(tmp_path / "2.npy", np.zeros((3, 4)))
    with pytest.raises(SchemaChanged, match=r"2.npy holds rows of float64\[4\]"):
        read_numpy([tmp_path / "1.npy", tmp_path / "2.npy"])


def test_read_numpy_takes_trees_of_paths_and_arrays(tmp_path: Path) -> None:
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    for ds in (read_numpy((tmp_path / "x.npy", tmp_path / "y.npy")), read_numpy((x, y)), from_tensor_slices((x, y))):
        (batch,) = list(ds.batch(6))
        np.testing.assert_array_equal(batch[0], x)
        assert batch[1].tolist() == y.tolist()
    (bare,) = list(read_numpy(tmp_path / "y.npy").batch(6))
    assert bare.tolist() == y.tolist()
    with pytest.raises(InvalidInput, match="not both"):
        read_numpy((x, str(tmp_path / "y.npy")))
    with pytest.raises(InvalidInput, match="npz"):
        read_numpy(tmp_path / "y.npy", label="y")


def test_the_fingerprint_follows_the_data(tmp_path: Path) -> None:
    x = np.arange(10.0)
    before = memory(x).fingerprint()
    assert memory(x.copy()).fingerprint() == before
    x[0] = 5
    assert memory(x).fingerprint() != before
    assert memory(["a", "b"]).fingerprint() != memory(["a", "c"]).fingerprint()


@pytest.mark.parametrize("suffix", ["npy", "npz"])
@pytest.mark.parametrize("held", [10, 1])
def test_damaged_files_are_skipped_where_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, held: int
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("penstock.sources.listing.shard_files.HELD", held)
    for i in range(4):
        if suffix == "npy":
            np.save(tmp_path / f"{i}.npy", np.arange(3) + 10 * i)
        else:
            np.savez(tmp_path / f"{i}.npz", v=np.arange(3) + 10 * i)
    for i in (0, 2):
        whole = (tmp_path / f"{i}.{suffix}").read_bytes()
        (tmp_path / f"{i}.{suffix}").write_bytes(whole[:-20])
    with pytest.raises(BadData, match=rf"0\.{suffix}"):
        read_numpy(f"{tmp_path}/*.{suffix}")
    ds = read_numpy(f"{tmp_path}/*.{suffix}", on_error="skip")
    rows = [int(row["v"] if suffix == "npz" else row) for row in ds]
    assert rows == [10, 11, 12, 30, 31, 32]
    source = ds.node.step.source  # type: ignore[attr-defined]
    assert source.on_error.count == 2 and source._where(3) == f"{tmp_path}/3.{suffix}, row 0"
    with pytest.raises(BadData, match="none of 1 files could be read"):
        read_numpy(f"{tmp_path}/0.{suffix}", on_error="skip")
    if suffix == "npy":
        with pytest.raises(BadData, match=r"0\.npy"):  # side by side, rows would no longer belong together
            read_numpy((f"{tmp_path}/0.npy", f"{tmp_path}/1.npy"), on_error="skip")


def test_mistakes_in_calls_are_told_in_a_sentence(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.arange(3))
    with pytest.raises(BadData, match=r"a.npz: is an archive of arrays \(.npz\) where a single array"):
        read_numpy(tmp_path)
    with pytest.raises(BadData, match=r"a.npy: is a single array \(.npy\) among archives"):
        read_numpy([tmp_path / "a.npz", tmp_path / "a.npy"])
    with pytest.raises(InvalidInput, match=r"features= is a name or a list of names, not 3. There are: x, y"):
        read_numpy(tmp_path / "a.npz", features=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"label= is the name of one array, not \['y'\]"):
        read_numpy(tmp_path / "a.npz", label=["y"])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"max_errors must be a count or a fraction below 1, not 'few'"):
        read_numpy(tmp_path / "a.npz", on_error="skip", max_errors="few")  # type: ignore[arg-type]


@pytest.mark.parametrize("packed", [False, True])
def test_what_has_no_rows_may_lie_beside_the_arrays(tmp_path: Path, packed: bool) -> None:
    path, cache = tmp_path / "t.npz", tmp_path / "cache"
    odd = {"mean": np.float64(0.5), "names": np.array(["a", "b"], object)}
    (np.savez_compressed if packed else np.savez)(path, x=np.arange(6).reshape(3, 2), y=np.arange(3), **odd)
    found = list(read_numpy(path, features="x", label="y", cache=cache))
    assert [(x.tolist(), int(y)) for x, y in found] == [([0, 1], 0), ([2, 3], 1), ([4, 5], 2)]
    assert not packed or len(list(cache.iterdir())) == 2
    with pytest.raises(BadData, match=r"t\.npz, member mean\.npy: holds a single value.*features= and label="):
        read_numpy(path, cache=cache)
    with pytest.raises(BadData, match=r"t\.npz, member names\.npy: holds Python objects"):
        read_numpy(path, features="x", label="names", cache=cache)


def test_whole_numbers_in_memory_are_exact_or_refused() -> None:
    ids = pd.DataFrame({"id": pd.array([2**53 + 1, 5], dtype="Int64")})
    assert [int(row["id"]) for row in from_tensor_slices(ids)] == [2**53 + 1, 5]
    gone = pd.DataFrame({"id": pd.array([2**53 + 1, None], dtype="Int64")})
    for odd in (gone, {"id": pa.array([2**53 + 1, None])}):
        with pytest.raises(InvalidInput, match="'id' has missing values.*would round.*Fill"):
            from_tensor_slices(odd)
    with pytest.raises(InvalidInput, match="whole numbers that neither int64 nor uint64"):
        from_tensor_slices([2**63, -1])
    flags = pd.DataFrame({"n": pd.array([3, None], dtype="Int64"), "b": pd.array([True, None], dtype="boolean")})
    (batch,) = from_tensor_slices(flags).batch(2)
    np.testing.assert_array_equal(batch["n"], [3, np.nan])
    np.testing.assert_array_equal(batch["b"], [1, np.nan])


def test_masks_and_doubled_columns_are_not_lost() -> None:
    with pytest.raises(InvalidInput, match="is masked.*filled"):
        from_tensor_slices(np.ma.array([1, 2], mask=[False, True]))
    assert [int(v) for v in from_tensor_slices(np.ma.array([1, 2]))] == [1, 2]
    with pytest.raises(InvalidInput, match="a column name twice"):
        from_tensor_slices(pd.DataFrame([[1, 2]], columns=["a", "a"]))
