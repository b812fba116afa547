"""`features=` and `label=` make `(x, y)` with every reader that has named columns; `label=` does so for pictures."""

from __future__ import annotations

import io
import tarfile

import cv2
import h5py
import numpy as np
import pytest
import zarr

import penstock as ps
from penstock.core.errors import InvalidInput
from penstock.sources.tfrecord.write import encode_example, write_records


def csv(folder):
    (folder / "a.csv").write_text("a,b,y\n1,2,7\n3,4,8\n")
    return ps.read_csv, str(folder / "a.csv")


def json(folder):
    (folder / "a.jsonl").write_text('{"a": 1, "b": 2, "y": 7}\n{"a": 3, "b": 4, "y": 8}\n')
    return ps.read_json, str(folder / "a.jsonl")


def tfrecord(folder):
    path = str(folder / "a.tfrecord")
    write_records(path, (encode_example({"a": a, "b": a + 1, "y": y}) for a, y in ((1, 7), (3, 8))))
    return ps.read_tfrecords, path


def hdf5(folder):
    with h5py.File(folder / "a.h5", "w") as file:
        file["a"], file["b"], file["y"] = [1, 3], [2, 4], [7, 8]
    return ps.read_hdf5, str(folder / "a.h5")


def zarrs(folder):
    group = zarr.open_group(str(folder / "a.zarr"), mode="w")
    for name, values in (("a", [1, 3]), ("b", [2, 4]), ("y", [7, 8])):
        group.create_array(name, data=np.array(values))
    return ps.read_zarr, str(folder / "a.zarr")


def webdataset(folder):
    with tarfile.open(folder / "a.tar", "w") as tar:
        for key, a, y in (("0", 1, 7), ("1", 3, 8)):
            for extension, value in (("a.cls", a), ("y.cls", y)):
                text = str(value).encode()
                entry = tarfile.TarInfo(f"{key}.{extension}")
                entry.size = len(text)
                tar.addfile(entry, io.BytesIO(text))

    def read(path, features, label):
        kinds = {"a.cls": "int", "y.cls": "int"}
        return ps.read_webdataset(path, features=f"{features}.cls", label=f"{label}.cls", decode=kinds)

    return read, str(folder / "a.tar")


@pytest.mark.parametrize("write", [csv, json, tfrecord, hdf5, zarrs, webdataset])
def test_features_and_label_make_pairs(write, tmp_path):
    read, path = write(tmp_path)
    found = [(int(np.asarray(x).reshape(())), int(y)) for x, y in read(path, features="a", label="y")]
    assert found == [(1, 7), (3, 8)]


def test_pictures_take_label_too(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        cv2.imwrite(str(tmp_path / name / "0.png"), np.zeros((3, 4, 3), np.uint8))
    bare = [ps.read_images(tmp_path, label=None), ps.read_images(tmp_path, labels=None)]
    assert all(next(iter(ds)).shape == (3, 4, 3) for ds in bare)
    assert [int(y) for _, y in ps.read_images(tmp_path, label=lambda path: "dog" in path)] == [0, 1]


def test_two_names_for_one_thing_are_a_mistake(tmp_path):
    read, path = hdf5(tmp_path)
    with pytest.raises(InvalidInput, match="y= and label= mean the same"):
        read(path, x="a", y="y", label="y")
    with pytest.raises(InvalidInput, match="label= and labels= mean the same"):
        ps.read_images(tmp_path, label=None, labels=lambda path: 1)
