"""Tables go block by block, image files as they are, and the bytes are those of the slow way."""

from __future__ import annotations

import tarfile
from pathlib import Path

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from penstock.core.errors import BadData, InvalidInput
from penstock.read import from_tensor_slices, read_csv, read_images, read_parquet, read_tfrecords
from penstock.read.webdataset import read_webdataset
from penstock.sources.tfrecord.write import encode_example, frame
from penstock.write.encode import records
from penstock.write.formats import tar_head

ROWS = 3000


@pytest.fixture(scope="module")
def csv(tmp_path_factory) -> Path:
    rng = np.random.default_rng(0)
    table = pa.table({
        **{name: rng.standard_normal(ROWS) for name in "abc"},
        "word": [f"word {i % 7}" for i in range(ROWS)], "label": rng.integers(0, 5, ROWS),
    })  # fmt: skip
    path = tmp_path_factory.mktemp("csv") / "table.csv"
    pyarrow.csv.write_csv(table, path)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(1)
    for name in ("cat", "dog"):
        (folder / name).mkdir()
        for index in range(9):
            picture = rng.integers(0, 255, (30 + index, 40, 3), dtype=np.uint8)
            cv2.imwrite(str(folder / name / f"{index}.{'png' if index == 4 else 'jpg'}"), picture)
    return folder


def test_a_table_keeps_its_columns_and_rows(csv, tmp_path, newly_held):
    report = read_csv(str(csv)).write(tmp_path, shard_size="40KB")
    assert report.rows == ROWS and len(report.files) > 2
    found = pa.concat_tables([pq.read_table(file) for file in report.files])
    wanted = pyarrow.csv.read_csv(csv)
    assert found.column_names == wanted.column_names
    for name in wanted.column_names:
        assert found[name].to_pylist() == pytest.approx(wanted[name].to_pylist()), name
    assert newly_held() == {}


def test_features_are_one_array_and_the_label_stays(csv, tmp_path):
    read_csv(str(csv), features=["a", "b", "c"], label="label").batch(64).write(tmp_path / "p")
    read_csv(str(csv), features=["a", "b", "c"], label="label").batch(64).write(tmp_path / "t", "tfrecord")
    packed = read_parquet(str(tmp_path / "p")).peek()
    assert np.asarray(packed["x"]).shape == (3,) and packed["label"] in range(5)
    rows = list(read_tfrecords(str(tmp_path / "t")))
    assert len(rows) == ROWS and rows[0]["x"].shape == (3,)
    assert np.allclose(rows[5]["x"], list(read_csv(str(csv), features=["a", "b", "c"], label="label"))[5][0])


def test_a_batch_that_drops_rows_still_drops_them(csv, tmp_path):
    assert read_csv(str(csv)).batch(1024, drop_last=True).write(tmp_path).rows == 2048


def test_rows_of_changing_length_are_lists(tmp_path):
    ds = from_tensor_slices(np.arange(40)).map(lambda n: {"n": n, "x": np.arange(int(n) % 4 + 1, dtype=np.float32)})
    report = ds.write(tmp_path)
    assert pq.read_schema(report.files[0]).field("x").type == pa.list_(pa.float32())
    assert [len(row) for row in pq.read_table(report.files[0])["x"].to_pylist()] == [n % 4 + 1 for n in range(40)]


def test_the_types_of_a_row_group_hold_all_of_its_blocks(tmp_path):
    def row(n: int) -> dict[str, object]:
        return {"x": np.arange(2 if n < 200 else int(n) % 3 + 1), "word": None if n < 200 else f"w{n}"}

    report = from_tensor_slices(np.arange(400)).map(row).write(tmp_path)
    found = pq.read_table(report.files[0])
    assert found["x"].to_pylist()[::199] == [[0, 1], [0, 1], [0, 1, 2]]
    assert found["word"].to_pylist()[199:202] == [None, "w200", "w201"]


def test_a_sample_without_a_member_has_none(tmp_path):
    ds = from_tensor_slices(np.arange(40)).map(lambda n: {"n": n, "note": f"even {n}" if n % 2 == 0 else None})
    ds.write(tmp_path, "webdataset")
    with tarfile.open(tmp_path / "shard-000000.tar") as tar:
        names = [member.name for member in tar]
    assert names.count("000000000.note.txt") == 1 and "000000001.note.txt" not in names
    assert sum(name.endswith(".json") for name in names) == 40


def test_a_table_write_that_stopped_in_a_block_goes_on_to_the_same_files(csv, tmp_path, newly_held):
    class Enough(Exception):
        pass

    def stop(rows: int, nbytes: int) -> None:
        if rows > ROWS // 2:
            raise Enough

    with pytest.raises(Enough):
        read_csv(str(csv)).write(tmp_path / "a", shard_size="40KB", progress=stop)
    assert newly_held() == {}
    again = read_csv(str(csv)).write(tmp_path / "a", shard_size="40KB")
    whole = read_csv(str(csv)).write(tmp_path / "b", shard_size="40KB")
    assert (again.rows, again.checksum) == (ROWS, whole.checksum)


def test_ranks_do_not_share_a_folder(csv, tmp_path):
    parts = [read_csv(str(csv)).shard(rank, 2).write(tmp_path / str(rank)).rows for rank in (0, 1)]
    assert sum(parts) == ROWS
    with pytest.raises(InvalidInput, match="other data or other options"):
        read_csv(str(csv)).shard(1, 2).write(tmp_path / "0")


@pytest.mark.parametrize("format", ["parquet", "webdataset", "tfrecord"])
def test_image_files_pass_untouched(format, photos, tmp_path):
    read_images(str(photos)).write(tmp_path, format)
    names = sorted(photos.rglob("*.*"))
    if format == "webdataset":
        with tarfile.open(tmp_path / "shard-000000.tar") as tar:
            members = {m.name: tar.extractfile(m).read() for m in tar}
        found = [members.get(f"{i:09d}.jpg") or members[f"{i:09d}.png"] for i in range(len(names))]
        assert [members[f"{i:09d}.cls"] for i in range(len(names))] == [b"0"] * 9 + [b"1"] * 9
    elif format == "parquet":
        table = pq.read_table(tmp_path / "shard-000000.parquet")
        found, labels = table["image"].to_pylist(), table["label"].to_pylist()
        assert labels == [0] * 9 + [1] * 9
    else:
        found = [row["image"] for row in read_tfrecords(str(tmp_path))]
    assert [bytes(data) for data in found] == [path.read_bytes() for path in names]


@pytest.mark.parametrize("options", [{"quality": 60}, {"size": 16}, {"lossless": True}], ids=str)
def test_image_files_are_compressed_anew_when_something_else_is_asked(options, photos, tmp_path):
    read_images(str(photos)).write(tmp_path, "parquet", **options)
    stored = pq.read_table(tmp_path / "shard-000000.parquet")["image"].to_pylist()
    originals = [path.read_bytes() for path in sorted(photos.rglob("*.*"))]
    kept = [a == b for a, b in zip(stored, originals)]
    assert kept == [bool(options.get("lossless")) and i % 9 == 4 for i in range(18)]  # a PNG is lossless as it is


def test_pixels_that_a_function_sees_are_decoded(photos, tmp_path):
    read_images(str(photos)).map(lambda image, label: (255 - image, label)).write(tmp_path, "webdataset")
    first = next(iter(read_webdataset(str(tmp_path))))
    assert abs(float(first["jpg"].mean()) + cv2.imread(str(photos / "cat" / "0.jpg")).mean() - 255) < 2


def test_a_file_that_is_no_picture_is_named(photos, tmp_path):
    folder = tmp_path / "in" / "cat"
    folder.mkdir(parents=True)
    (folder / "a.jpg").write_bytes((photos / "cat" / "0.jpg").read_bytes())
    (folder / "b.jpg").write_bytes(b"not a picture")
    with pytest.raises(BadData, match=r"b\.jpg"):
        read_images(str(tmp_path / "in")).write(tmp_path / "out", "webdataset")
    assert read_images(str(tmp_path / "in"), on_error="skip").write(tmp_path / "skipped", "webdataset").rows == 1


def test_compiled_records_are_those_of_the_slow_way():
    rng = np.random.default_rng(2)
    n = 300
    columns = {
        "x": rng.standard_normal((n, 5)), "i": rng.integers(-3, 2**40, n), "u": np.full(n, 2**64 - 1, np.uint64),
        "m": rng.integers(0, 300, (n, 2, 2)).astype(np.int16), "b": rng.integers(0, 2, n).astype(bool),
        "text": np.array(["é" * (i % 80) for i in range(n)], object),
        "a long name " * 15: np.array([bytes(i * 7 % 500) for i in range(n)], object),
    }  # fmt: skip
    slow = [frame(encode_example({name: c[row] for name, c in columns.items()})) for row in range(n)]
    assert list(records(columns)) == slow


def test_ragged_columns_take_the_slow_way():
    column = np.empty(20, object)
    column[:] = [np.arange(i + 1) for i in range(20)]
    assert list(records({"x": column})) == [frame(encode_example({"x": value})) for value in column]


@pytest.mark.parametrize(("name", "nbytes"), [("000000001.jpg", 123456), ("k" * 99, 0), ("k" * 120, 5), ("a", 8**11)])
def test_a_tar_header_is_that_of_the_library(name, nbytes):
    info = tarfile.TarInfo(name)
    info.size = nbytes
    plain = len(name) <= 100 and nbytes < 8**11
    assert tar_head(name, nbytes) == info.tobuf(tarfile.USTAR_FORMAT if plain else tarfile.GNU_FORMAT)
