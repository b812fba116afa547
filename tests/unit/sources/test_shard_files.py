"""Names of shard files: what a glob means, the order, and how little many of them hold."""

from __future__ import annotations

import gc
import glob
import os
import pickle
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest

import penstock
from penstock.core.errors import NotFound
from penstock.read.arrays import read_numpy
from penstock.read.hdf5 import read_hdf5
from penstock.read.json import read_json
from penstock.read.tfrecord import read_tfrecords
from penstock.read.webdataset import read_webdataset
from penstock.sources.listing import shard_files
from penstock.sources.listing.packed_names import PathIndex
from penstock.sources.storage import files as storage
from penstock.sources.tfrecord.write import encode_example, write_records

MANY = 20_000


def held_nbytes() -> int:
    """What penstock's lines hold, and names decoded by `os`: an earlier test's thread may still compile beside this."""
    files = (f"{Path(penstock.__file__).parent}/*", os.fsdecode.__code__.co_filename)
    ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, file) for file in files])
    return sum(trace.size for trace in ours.traces)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Hard links to one small file, in four folders."""
    root = tmp_path_factory.mktemp("many")
    (root / "seed").write_text('{"a": 1}\n')
    for i in range(MANY):
        folder = root / f"part-{i % 4}"
        folder.mkdir(exist_ok=True)
        os.link(root / "seed", folder / f"shard-{i:07d}-of-{MANY:07d}.jsonl")
    return root


@pytest.fixture
def tree(tmp_path):
    for name in ("b.csv", "a.csv", ".h.csv", "a/x.csv", "a/.h/y.csv", "a-b/x.csv", "a-b/deep/x.csv", "é/[1].csv", "d.csv/x.csv"):  # fmt: skip  # noqa: E501
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "broken.csv").symlink_to(tmp_path / "nowhere")
    return tmp_path


@pytest.mark.parametrize(
    "pattern",
    ["*.csv", "*", "**", "**/*.csv", "*/x.csv", "**/x.csv", "a*/**/x.csv", ".*.csv", "a/.*/*", "?/*", "[ab].csv",
     "é/[[]*", "**/**/x.csv", "./*.csv", "../*/b.csv"],
)  # fmt: skip
@pytest.mark.parametrize("absolute", [True, False], ids=["absolute", "relative"])
def test_a_glob_means_what_it_means_to_python(tree, monkeypatch, pattern, absolute):
    monkeypatch.chdir(tree)
    written = f"{tree}/{pattern}" if absolute else pattern
    assert storage.expand(written) == sorted({p for p in glob.glob(written, recursive=True) if not os.path.isdir(p)})


def test_a_link_back_to_its_folder_is_not_followed(tree):
    plain = storage.expand(tree, suffixes=(".csv",))
    (tree / "a" / "round").symlink_to(tree, target_is_directory=True)
    assert storage.expand(tree, suffixes=(".csv",)) == plain


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_a_folder_that_cannot_be_read_is_not_left_out(tree):
    (tree / "a").chmod(0)
    try:
        with pytest.raises(NotFound, match="'.*/a/?' cannot be read: Permission denied"):
            storage.expand(f"{tree}/*/*.csv")
    finally:
        (tree / "a").chmod(0o700)


def test_many_names_are_the_same_names_packed(many, monkeypatch):
    pattern = f"{many}/*/*.jsonl"
    packed = storage.expand(pattern)
    assert isinstance(packed, PathIndex) and len(packed) == MANY
    assert list(packed) == sorted(glob.glob(pattern))
    assert packed[-1] == packed[MANY - 1] and packed[2:9:3] == [packed[2], packed[5], packed[8]]
    assert storage.expand(many, suffixes=(".jsonl",))[:] == packed[:]
    assert storage.expand([pattern, f"{many}/seed"])[-1] == f"{many}/seed"
    monkeypatch.setattr(shard_files, "HELD", MANY)
    assert storage.expand(pattern) == packed[:]


def test_many_names_hold_next_to_nothing(many):
    """As a list they take 130 bytes each; packed, they are pages of a file."""
    tracemalloc.start()
    try:
        packed = storage.expand(f"{many}/*/*.jsonl")
        held = held_nbytes()
    finally:
        tracemalloc.stop()
    assert held / len(packed) < 16
    assert len(pickle.dumps(packed)) < 1000


def test_a_reader_of_many_lines_files_holds_numbers_only(many):
    read_json(f"{many}/*/*0.jsonl").node.step.source.num_units()  # what reading imports is not held by a dataset
    tracemalloc.start()
    try:
        source = read_json(f"{many}/*/*.jsonl").node.step.source
        assert source.num_units() == MANY
        held = held_nbytes()
        block = next(source.open(MANY - 1))
    finally:
        tracemalloc.stop()
    assert block.columns["a"].tolist() == [1]
    assert held / MANY < 40  # sizes and first units, and how each file stood


def test_an_index_of_many_files_holds_numbers_only(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_files, "HELD", 10)
    count = 2000
    write_records(tmp_path / "seed", (encode_example({"y": i}) for i in range(2)))
    for i in range(count):
        os.link(tmp_path / "seed", tmp_path / f"{i:05d}.tfrecord")
    read_tfrecords(f"{tmp_path}/0000*.tfrecord", {"y": "int64"}).node.step.source.num_rows()  # imports, compiles
    tracemalloc.start()
    try:
        source = read_tfrecords(f"{tmp_path}/*.tfrecord", {"y": "int64"}).node.step.source
        assert source.num_rows() == 2 * count
        source.index._maps.clear()  # the last few that were looked at
        gc.collect()
        held = held_nbytes()
    finally:
        tracemalloc.stop()
    assert held / count < 100  # a name each, where it is and how it ended took 500
    assert pickle.loads(pickle.dumps(source)).num_rows() == 2 * count


def write_array_file(path: Path, kind: str, start: int) -> None:
    """Three rows of 1,024 numbers and of one, counted up from `start`."""
    y = np.arange(start, start + 3)
    x = np.repeat(y.astype(np.float32), 1024).reshape(3, 1024)
    if kind == "npy":
        np.save(path, x)
    elif kind.startswith("npz"):
        (np.savez if kind == "npz" else np.savez_compressed)(path, x=x, y=y)
    else:
        with h5py.File(path, "w") as file:
            chunks = (1 + start % 3, 1024) if kind == "hdf5 chunked" else None
            file.create_dataset("x", data=x, chunks=chunks)
            file.create_dataset("y", data=y)


@pytest.mark.parametrize("kind", ["npy", "npz", "npz compressed", "hdf5", "hdf5 chunked", "hdf5 blocks"])
def test_a_reader_of_many_array_files_holds_numbers_only(tmp_path, monkeypatch, kind):
    """A path and an array's place took 285 bytes a file, the facts of an HDF5 file 800."""
    monkeypatch.setattr(shard_files, "HELD", 10)
    monkeypatch.setattr("penstock.sources.hdf5.source.READERS_KEPT", 10)
    monkeypatch.setattr("penstock.sources.hdf5.files._FACTS_KEPT", 10)
    monkeypatch.setattr("penstock.sources.arrays.npy.MAPPED", 10)
    count, seeds, suffix = 600, 3, kind.split()[0][:4]
    for seed in range(seeds):
        write_array_file(tmp_path / f"seed{seed}.{suffix}", kind, 3 * seed)
    for i in range(count):
        os.link(tmp_path / f"seed{i % seeds}.{suffix}", tmp_path / f"{i:05d}.{suffix}")

    def source(pattern):
        if suffix == "hdf5":
            access = "blocks" if "blocks" in kind else "rows"
            return read_hdf5(f"{tmp_path}/{pattern}.hdf5", x="x", y="y", access=access).node.step.source
        chosen = {} if kind == "npy" else {"features": "x", "label": "y"}
        return read_numpy(f"{tmp_path}/{pattern}.{suffix}", **chosen).node.step.source

    def read(made, file):
        if "blocks" in kind:
            return next(made.open(file)).columns["x"]
        block = made.decode(made.fetch(np.arange(3 * file, 3 * file + 3)))
        return block.columns["value" if kind == "npy" else "x"]

    read(source("0000*"), 0)  # imports
    tracemalloc.start()
    try:
        made = source("0*")
        assert made.num_rows() == 3 * count
        for file in range(0, count, 75):
            np.testing.assert_array_equal(read(made, file)[:, 0], 3 * (file % seeds) + np.arange(3))
        gc.collect()
        held = held_nbytes()
    finally:
        tracemalloc.stop()
    assert held / count < 220  # up to twelve numbers a file; and what the ten of late hold
    np.testing.assert_array_equal(
        read(pickle.loads(pickle.dumps(made)), count - 1)[:, 7], 3 * ((count - 1) % seeds) + np.arange(3)
    )


def test_a_range_of_tars_is_not_written_out_first(tmp_path):
    with pytest.raises(NotFound, match="'.*/000000.tar' does not exist"):
        tracemalloc.start()
        try:
            read_webdataset(f"{tmp_path}/{{000000..999999}}.tar")
        finally:
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    assert most < 10_000_000
