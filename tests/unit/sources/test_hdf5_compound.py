"""Compound and array types of HDF5: each field is a column, with the values that h5py gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from penstock.core.errors import BadData, InvalidInput, NotFound
from penstock.read.hdf5 import read_hdf5

KIND = np.dtype(
    [("a", "<i4"), ("b", ">f8"), ("s", "S4"), ("v", "<f4", (3,)), ("n", [("x", "u1"), ("y", "<i2", (2, 2))])]
)


@pytest.fixture(params=["contiguous", "chunked", "gzip"])
def file(request: Any, tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    rows = np.frombuffer(rng.integers(0, 120, 100 * KIND.itemsize, np.uint8).tobytes(), KIND)
    how: dict[str, Any] = {"chunked": {"chunks": (7,)}, "gzip": {"chunks": (7,), "compression": "gzip"}}
    with h5py.File(tmp_path / "a.h5", "w") as out:
        out.create_dataset("g/t", data=rows, **how.get(request.param, {}))
        small = out.create_dataset("small", (100,), np.dtype(("<i4", (2, 3))), **how.get(request.param, {}))
        small[...] = np.arange(600).reshape(100, 2, 3)
    return tmp_path / "a.h5"


def test_every_field_is_a_column(file: Path) -> None:
    with h5py.File(file) as there:
        table, small = there["g/t"][:], there["small"][:]
    wanted = {"g/t.a": table["a"], "g/t.b": table["b"], "g/t.v": table["v"], "g/t.n.x": table["n"]["x"]}
    wanted |= {"g/t.n.y": table["n"]["y"], "small": small}
    dataset = read_hdf5(file)
    found = list(dataset.batch(9))
    for name, values in wanted.items():
        np.testing.assert_array_equal(np.concatenate([batch[name] for batch in found]), values)
    text = [value for batch in found for value in batch["g/t.s"]]
    assert text == table["s"].tolist()


def test_one_field_by_its_name(file: Path) -> None:
    with h5py.File(file) as there:
        wanted = there["g/t"]["v"], there["g/t"]["a"]
    found = list(read_hdf5(file, "g/t.v", "g/t.a").shuffle(seed=1).batch(100))
    order = np.argsort(found[0][1], kind="stable")
    np.testing.assert_array_equal(np.sort(found[0][1]), np.sort(wanted[1]))
    assert found[0][0].dtype == np.float32 and found[0][0][order].shape == (100, 3)


def test_what_has_no_array_form_is_named(file: Path) -> None:
    with pytest.raises(InvalidInput, match=r"'g/t' is compound.*'g/t\.a'"):
        read_hdf5(file, "g/t")
    with pytest.raises(NotFound, match=r"no field 'q'.*a, b, s"):
        read_hdf5(file, "g/t.q")
    with pytest.raises(NotFound, match="no dataset 'small.q'"):
        read_hdf5(file, "small.q")


TEXT = h5py.string_dtype()
OPEN = np.dtype(
    [
        ("a", "i1"),
        ("name", TEXT),
        ("x", ">f8"),
        ("v", h5py.vlen_dtype("<i4")),
        ("n", [("t", TEXT), ("k", "<u2")]),
        ("w", TEXT),
    ]
)


def open_file(path: Path, shape: tuple[int, ...] = (40,), **how: Any) -> Path:
    with h5py.File(path, "w") as out:
        table = out.create_dataset("t", shape, OPEN, **how)
        for place in np.ndindex(*shape):
            i = place[0]
            if len(shape) > 1 or i < 30 or "chunks" not in how:  # the last chunks are never written
                table[place] = (i, f"n\u00e4me {i}" * (i % 4), i / 3, np.arange(i % 5), (f"inner {place}", i), f"w{i}")
    return path


@pytest.mark.parametrize(
    "how",
    [{}, {"chunks": (7,)}, {"chunks": (10,), "compression": "gzip", "shuffle": True}, {"shape": (6, 2)}],
    ids=["contiguous", "chunked", "gzip", "two axes"],
)
def test_text_and_lists_inside_of_compound_values(tmp_path: Path, how: dict[str, Any]) -> None:
    path = open_file(tmp_path / "a.h5", **how)
    with h5py.File(path) as file:
        wanted = file["t"][:]
    names = ["t.name", "t.n.t", "t.w", "t.a", "t.x", "t.n.k"]
    found = list(read_hdf5(path, columns=names))
    assert len(found) == len(wanted)
    for row, there in zip(found, wanted, strict=True):
        texts = {"t.name": there["name"], "t.n.t": there["n"]["t"], "t.w": there["w"]}
        for name, value in texts.items():
            values = [value] if isinstance(value, bytes) else np.ravel(value).tolist()
            assert np.ravel(row[name]).tolist() == [text.decode() for text in values], name
        np.testing.assert_array_equal(row["t.a"], there["a"])
        np.testing.assert_array_equal(row["t.x"], there["x"])
        np.testing.assert_array_equal(row["t.n.k"], there["n"]["k"])
    if "shape" not in how:
        for row, there in zip(read_hdf5(path, "t.v"), wanted["v"], strict=True):
            np.testing.assert_array_equal(row, there)


def test_a_damaged_heap_under_a_compound_value_is_reported_and_left_out(tmp_path: Path) -> None:
    path = open_file(tmp_path / "a.h5")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"GCOL", b"GXXL"))
    with pytest.raises(BadData, match="'t'.*no heap"):
        list(read_hdf5(path, "t.w"))
    assert list(read_hdf5(path, "t.w", on_error="skip")) == []


def test_open_values_that_only_the_library_could_follow_are_refused(tmp_path: Path) -> None:
    path = open_file(tmp_path / "a.h5", chunks=(10,), compression="lzf")
    with pytest.raises(InvalidInput, match=r"'t\.w' has the type object"):
        read_hdf5(path, "t.w")
    assert int(next(iter(read_hdf5(path, "t.a")))) == 0


@pytest.mark.parametrize(
    "inner",
    [np.dtype("S3"), np.dtype([("a", "S4")]), np.dtype("c8"), h5py.ref_dtype, h5py.vlen_dtype(np.dtype("c8"))],
    ids=["fixed text", "records of text", "complex", "references", "lists of complex"],
)
def test_lists_of_what_has_no_list_form_are_refused(tmp_path: Path, inner: Any) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as out:
        out.create_dataset("x", (3,), h5py.vlen_dtype(inner))
        out.create_dataset("t", (3,), np.dtype([("n", "i4"), ("v", h5py.vlen_dtype(inner))]))
    for name in ("x", "t.v"):
        with pytest.raises(InvalidInput, match=f"'{name}' h(olds|as the type)"):
            read_hdf5(tmp_path / "a.h5", name)
    assert [int(n) for n in read_hdf5(tmp_path / "a.h5", "t.n")] == [0, 0, 0]


@pytest.mark.parametrize("inner", [bool, "f2", ">f4", ">i8", "u1"])
def test_lists_of_numbers_are_as_they_were_written(tmp_path: Path, inner: Any) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as out:
        table = out.create_dataset("x", (4,), h5py.vlen_dtype(np.dtype(inner)))
        for i in range(4):
            table[i] = np.arange(i).astype(inner)
    found = [np.asarray(row).tolist() for row in read_hdf5(tmp_path / "a.h5", "x")]
    assert found == [np.arange(i).astype(inner).tolist() for i in range(4)]
