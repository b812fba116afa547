"""Datasets that may grow along any axis, in the file formats of old and new libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from penstock.core.errors import BadData
from penstock.read.hdf5 import read_hdf5

LAYOUTS = [
    ((4, 6), (2, 3), (10, None)),
    ((4, 6), (2, 3), (4, None)),
    ((4, 6), (2, 3), (None, 6)),
    ((4, 6), (2, 3), (None, None)),
    ((4, 6), (2, 3), (10, 20)),
    ((5, 7), (2, 3), (9, None)),
    ((4, 6), (1, 6), (8, None)),
    ((4, 6, 5), (2, 3, 2), (10, None, 9)),
    ((4, 6, 5), (2, 6, 5), (10, 12, None)),
]


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("libver", ["earliest", "v110", "latest"])
@pytest.mark.parametrize(("shape", "chunks", "maxshape"), LAYOUTS, ids=str)
def test_rows_are_h5pys_whichever_axis_grows(
    tmp_path: Path, shape: Any, chunks: Any, maxshape: Any, libver: str, compression: str | None
) -> None:
    path, wanted = tmp_path / "grows.h5", np.arange(np.prod(shape), dtype="i4").reshape(shape) + 1
    with h5py.File(path, "w", libver=libver) as file:
        file.create_dataset("x", data=wanted, chunks=chunks, maxshape=maxshape, compression=compression)
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["x"][:], wanted)
    found = np.concatenate([np.asarray(batch) for batch in read_hdf5(path, "x").batch(3)])
    np.testing.assert_array_equal(found, wanted)


def test_places_that_are_none_of_the_grid_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the library tells of the case above, were it trusted: never other rows."""
    path = tmp_path / "lies.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("x", data=np.arange(24).reshape(4, 6), chunks=(2, 3), maxshape=(10, None))
    monkeypatch.setattr("penstock.sources.hdf5.survey._chunks_are_where_told", lambda node: True)
    with pytest.raises(BadData, match=r"lies\.h5.*no place of the grid"):
        list(read_hdf5(path, "x").batch(4))
