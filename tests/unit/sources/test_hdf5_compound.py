"""Compound and array types of HDF5: each field is a column, with the values that h5py gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from penstock.core.errors import InvalidInput, NotFound
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
