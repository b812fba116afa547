"""Tar files of samples: written and read by the webdataset package and by us, whole, damaged and hostile."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import tarfile
from pathlib import Path

import cv2
import numpy as np
import pytest

from penstock.core.block import Block
from penstock.core.errors import BadData, InvalidInput, NotFound
from penstock.core.source import RowSource, UnitSource
from penstock.read.webdataset import read_webdataset

webdataset = pytest.importorskip("webdataset")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


def source_of(path, **options):
    return read_webdataset(path if isinstance(path, list) else str(path), **options).node.step.source


def rows_of(source) -> Block:
    if isinstance(source, RowSource):
        return source.decode(source.fetch(np.arange(source.num_rows())))
    assert isinstance(source, UnitSource)
    return Block.concat([block for unit in range(source.num_units()) for block in source.open(unit)])


def read(path, **options) -> Block:
    return rows_of(source_of(path, **options))


def tar(path, files, fmt=tarfile.PAX_FORMAT, mode="w"):
    with tarfile.open(path, mode, format=fmt) as out:
        for name, data in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            out.addfile(entry, io.BytesIO(data))
    return str(path)


def npy(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def image(i=0, size=(30, 40)) -> np.ndarray:
    return np.random.default_rng(i).integers(0, 255, (*size, 3), np.uint8)


def png(i=0, size=(30, 40)) -> bytes:
    return cv2.imencode(".png", image(i, size)[:, :, ::-1])[1].tobytes()


def full(i) -> list[tuple[str, bytes]]:
    return [
        (f"d/{i:04}.png", png(i)),
        (f"d/{i:04}.cls", b"%d\n" % i),
        (f"d/{i:04}.txt", f"täxt {i}".encode()),
        (f"d/{i:04}.json", json.dumps({"a": i, "b": {"c": f"x{i}"}, "l": [1, i]}).encode()),
        (f"d/{i:04}.npy", npy(np.full((2, 3), i, np.float32))),
        (f"d/{i:04}.bin", bytes([i]) * 7),
    ]


def samples(n) -> list[tuple[str, bytes]]:
    return [member for i in range(n) for member in full(i)]


@pytest.mark.parametrize("access", ["rows", "stream"])
def test_each_extension_becomes_its_column(tmp_path, access):
    source = source_of(tar(tmp_path / "a.tar", samples(5)), access=access)
    block = rows_of(pickle.loads(pickle.dumps(source)))
    assert list(block.columns) == ["png", "cls", "txt", "json", "npy", "bin"]
    np.testing.assert_array_equal(block.columns["cls"], np.arange(5))
    np.testing.assert_array_equal(block.columns["png"][3], image(3))
    np.testing.assert_array_equal(block.columns["npy"][:, 1, 2], np.arange(5))
    row = block.row(2)
    assert row["txt"] == "täxt 2" and row["json"]["b"] == {"c": "x2"} and row["bin"] == b"\2" * 7
    assert str(source.schema()["npy"]) == "npy: float32[2, 3]"


def test_a_tuple_of_image_and_label(tmp_path):
    source = source_of(tar(tmp_path / "a.tar", samples(4)), sample=("jpg;png", "cls"), size=(16, 20))
    assert str(source.schema()) == "(jpg;png: uint8[16, 20, 3], cls: int64)"
    block = rows_of(source)
    assert block.tree == ("jpg;png", "cls") and block.columns["jpg;png"].shape == (4, 16, 20, 3)
    out = {"jpg;png": np.zeros((2, 16, 20, 3), np.uint8), "cls": np.zeros(2, np.int64)}
    source.decode_into(source.fetch(np.array([3, 1])), out)
    np.testing.assert_array_equal(out["cls"], [3, 1])
    np.testing.assert_array_equal(out["jpg;png"], block.columns["jpg;png"][[3, 1]])


def test_fields_of_json_the_key_and_bare_samples(tmp_path):
    path = tar(tmp_path / "a.tar", samples(3))
    block = read(path, sample={"x": "json.a", "y": ("json.b.c", "json.l.1"), "k": "__key__"})
    np.testing.assert_array_equal(block.columns["json.a"], [0, 1, 2])
    assert block.columns["json.b.c"].to_pylist() == ["x0", "x1", "x2"]
    np.testing.assert_array_equal(block.columns["json.l.1"], [0, 1, 2])
    assert block.columns["__key__"].to_pylist() == ["d/0000", "d/0001", "d/0002"]
    assert read(path, sample="cls").tree == "cls"
    assert list(read(path, columns=["txt"]).columns) == ["txt"]


def test_decode_can_be_told_or_turned_off(tmp_path):
    path = tar(tmp_path / "a.tar", samples(2))
    assert read(path, decode=None).row(1)["cls"] == b"1\n"
    assert read(path, decode={"cls": "text"}).row(1)["cls"] == "1\n"
    assert read(path, decode={"cls": "json"}, sample="cls").columns["cls"].dtype == np.int64


def test_rows_in_any_order_over_several_files(tmp_path):
    for shard in range(3):
        tar(tmp_path / f"s-{shard:02}.tar", [(f"{shard}{i}.cls", b"%d" % (shard * 10 + i)) for i in range(10)])
    source = source_of(str(tmp_path / "s-{00..02}.tar"))
    order = np.random.default_rng(1).permutation(30)
    np.testing.assert_array_equal(source.decode(source.fetch(order)).columns["cls"], order)
    assert source.num_rows() == 30 and source.fetch_nbytes(3) > 0
    assert len(os.listdir(tmp_path / "cache")) == 3


def test_compressed_files_are_streamed_and_resume_at_a_part(tmp_path):
    path = tar(tmp_path / "a.tar.gz", [(f"{i}.bin", bytes([i]) * 1_000_000) for i in range(20)], mode="w:gz")
    source = source_of(path)
    assert isinstance(source, UnitSource) and source.num_rows() is None
    blocks = list(source.open(0))
    assert sum(len(b) for b in blocks) == 20 and len(blocks) > 2
    assert [b.row(0)["bin"][0] for b in source.open(0, part=1)] == [b.row(0)["bin"][0] for b in blocks[1:]]
    with pytest.raises(InvalidInput, match="compressed"):
        source_of(path, access="rows")


@pytest.mark.parametrize("fmt", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_of_every_format(tmp_path, fmt):
    folder = "f" * 90 + "/" + "g" * 50
    name = folder + ("/h" * 60 if fmt != tarfile.USTAR_FORMAT else "")
    unicode = "/ü" if fmt != tarfile.USTAR_FORMAT else "/u"
    block = read(tar(tmp_path / "a.tar", [(f"{name}{unicode}.cls", b"7"), (f"{name}{unicode}.txt", b"t")], fmt),
                 columns=["cls", "txt", "__key__"])  # fmt: skip
    assert block.row(0) == {"cls": 7, "txt": "t", "__key__": name + unicode}


def test_names_are_only_keys(tmp_path):
    files = [
        ("../../evil.cls", b"1"),
        ("/etc/passwd.cls", b"2"),
        ("nodot", b"x"),
        ("__meta__.json__", b"x"),
        (".hidden", b""),
    ]
    block = read(tar(tmp_path / "a.tar", files), columns=["cls", "__key__"])
    assert block.columns["__key__"].to_pylist() == ["../../evil", "/etc/passwd"]
    assert sorted(os.listdir(tmp_path)) == ["a.tar", "cache"]


def test_links_and_folders_are_passed_over(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as out:
        for name, kind in (("d.x", tarfile.DIRTYPE), ("0.lnk", tarfile.SYMTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "/etc/passwd"
            out.addfile(entry)
        entry = tarfile.TarInfo("0.cls")
        entry.size = 1
        out.addfile(entry, io.BytesIO(b"5"))
    assert read(tmp_path / "a.tar").row(0) == {"cls": 5}


def test_what_webdataset_wrote(tmp_path):
    path = str(tmp_path / "w.tar")
    with webdataset.TarWriter(path) as out:
        for i in range(6):
            out.write({"__key__": f"k{i}", "png": image(i), "cls": i, "json": {"a": i}, "npy": np.arange(i + 1)})
    block = read(path, columns=["png", "cls", "json.a", "npy"])
    np.testing.assert_array_equal(block.columns["cls"], np.arange(6))
    np.testing.assert_array_equal(block.columns["json.a"], np.arange(6))
    np.testing.assert_array_equal(block.columns["png"][5], image(5))
    assert block.columns["npy"][4].tolist() == [0, 1, 2, 3, 4]


def test_the_same_samples_as_webdataset(tmp_path):
    path = tar(tmp_path / "a.tar", samples(4))
    theirs = list(webdataset.WebDataset(path, shardshuffle=False))
    ours = read(path, decode=None, columns=["__key__", "png", "txt", "bin"])
    assert len(theirs) == len(ours)
    for i, sample in enumerate(theirs):
        assert ours.row(i) == {name: sample[name] for name in ("__key__", "png", "txt", "bin")}


# --- damage ---------------------------------------------------------------------------------------------------------


def test_a_sample_without_a_column(tmp_path):
    path = tar(
        tmp_path / "a.tar", [("0.cls", b"0"), ("0.txt", b"a"), ("1.txt", b"b"), ("2.cls", b"2"), ("2.txt", b"c")]
    )
    with pytest.raises(BadData, match=r"byte 2048: sample '1' has no member \.cls, only \.txt"):
        read(path)
    source = source_of(path, on_error="skip")
    assert rows_of(source).columns["txt"].to_pylist() == ["a", "c"]
    assert source.on_error.count == 1


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("png", b"\x89PNG rubbish"),
        ("cls", b"seven"),
        ("txt", b"\xff\xfe"),
        ("json", b"{"),
        ("json", b"[" * 100_000),
        ("npy", b"\x93NUMPY"),
        ("npy", npy(np.zeros((2, 3), np.float32)).replace(b"(2, 3)", b"(9**9)")),
        ("npy", npy(np.zeros((2, 3), np.float32)).replace(b"(2, 3), }   ", b"(99999999,)}")),
        ("npy", npy(np.zeros((4, 3), np.float32))),
        ("npy", npy(np.array([{}], object))),
    ],
)
def test_a_damaged_member_costs_its_sample_only(tmp_path, name, data):
    files = samples(20)
    at = next(i for i, (path, _) in enumerate(files) if path.startswith("d/0018") and path.endswith(name))
    files[at] = files[at][0], data
    path = tar(tmp_path / "a.tar", files)
    with pytest.raises(BadData, match=rf"byte [0-9]+: member \.{name} cannot be decoded"):
        read(path)
    source = source_of(path, on_error="skip")
    assert len(rows_of(source)) == 19 and source.on_error.count == 1


@pytest.mark.parametrize("access", ["rows", "stream"])
def test_a_damaged_header_ends_the_file(tmp_path, access):
    path = tar(tmp_path / "a.tar", [(f"{i}.cls", b"1") for i in range(40)])
    data = bytearray(Path(path).read_bytes())
    data[1024 * 30 + 3] ^= 0xFF
    Path(path).write_bytes(data)
    with pytest.raises(BadData, match=f"byte {1024 * 30}: this is no tar header"):
        rows_of(source_of(path, access=access))
    source = source_of(path, access=access, on_error="skip")
    assert len(rows_of(source)) == 30 and source.on_error.count == 1


@pytest.mark.parametrize("access", ["rows", "stream"])
def test_a_file_cut_short(tmp_path, access):
    path = tar(tmp_path / "a.tar", [(f"{i}.bin", bytes(3000)) for i in range(30)])
    os.truncate(path, 29 * 3584 + 1000)
    with pytest.raises(BadData, match="ends in the middle"):
        rows_of(source_of(path, access=access))
    assert len(rows_of(source_of(path, access=access, on_error="skip"))) == 29


def test_hostile_sizes(tmp_path):
    entry = tarfile.TarInfo("0.bin")
    entry.size = 1 << 60
    hostile = entry.tobuf(tarfile.GNU_FORMAT)
    path = tar(tmp_path / "a.tar", [(f"{i}.bin", b"1") for i in range(20)])
    data = Path(path).read_bytes()
    for access in ("rows", "stream"):
        Path(path).write_bytes(data[: 20 * 1024] + hostile + bytes(2000))
        source = source_of(path, on_error="skip", access=access)
        assert len(rows_of(source)) == 20 and source.on_error.count == 1


def test_a_sample_above_the_limit_is_not_read(tmp_path):
    path = tar(tmp_path / "a.tar", [("0.bin", b"1"), ("1.bin", bytes(9000)), ("2.bin", b"3")])
    for access in ("rows", "stream"):
        source = source_of(path, max_sample=5000, on_error="skip", access=access)
        assert rows_of(source).columns["bin"].to_pylist() == [b"1", b"3"]
        assert "max_sample" in str(source.on_error.last)


def test_two_members_of_one_name(tmp_path):
    path = tar(tmp_path / "a.tar", [("0.cls", b"1"), ("1.cls", b"1"), ("1.cls", b"2")])
    with pytest.raises(BadData, match="two members"):
        read(path)


def test_a_bomb_is_inflated_piece_by_piece(tmp_path):
    entry = tarfile.TarInfo("0.bin")
    entry.size = 300_000_000
    first = tar(tmp_path / "x.tar", [("a.bin", b"1")])
    data = Path(first).read_bytes()[:1024] + entry.tobuf() + bytes(entry.size)
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(data, 1))
    del data
    source = source_of(tmp_path / "b.tar.gz", max_sample="1MB", on_error="skip")
    assert len(rows_of(source)) == 1 and source.on_error.count == 1


def test_calls_that_make_no_sense(tmp_path):
    path = tar(tmp_path / "a.tar", samples(1))
    for options in ({"sample": 3}, {"sample": ("cls", 3)}, {"sample": "cls", "columns": ["cls"]}, {"decode": "yes"},
                    {"decode": {"cls": "float"}}, {"access": "units"}, {"max_sample": "5GB"}):  # fmt: skip
        with pytest.raises(InvalidInput):
            source_of(path, **options)
    with pytest.raises(NotFound, match=r"No member \.jpg"):
        source_of(path, sample=("jpg", "cls"))
    with pytest.raises(NotFound, match="no sample"):
        source_of(tar(tmp_path / "e.tar", []))
