"""Datasets written as shards and read again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.core.errors import DataError, InvalidInput
from penstock.dataset import Dataset
from penstock.read import from_tensor_slices, read_parquet, read_tfrecords
from penstock.read.recognise.formats import kind_of, open_any
from penstock.read.webdataset import read_webdataset
from penstock.write.formats import SUFFIX
from tests.contract.chains import elements

FORMATS = ("parquet", "webdataset", "tfrecord")


def picture(n: Any) -> np.ndarray:
    rows, columns = np.mgrid[0:24, 0:32]
    return np.stack([rows * 5 + int(n), columns * 4, rows + columns], axis=-1).astype(np.uint8)


def pictures(count: int = 20) -> Dataset:
    return from_tensor_slices(np.arange(count)).map(lambda n: (picture(n), n))


def table(count: int = 500) -> Dataset:
    x = np.arange(count * 3, dtype=np.float32).reshape(count, 3)
    return from_tensor_slices({"x": x, "n": np.arange(count), "word": [f"w{i}" for i in range(count)]})


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name.startswith("shard-")}


@pytest.mark.parametrize("lossless", [True, False])
@pytest.mark.parametrize("format", FORMATS)
def test_images_and_labels_come_back(format, lossless, tmp_path):
    report = pictures().write(tmp_path, format, shard_size="10KB", lossless=lossless)
    assert report.rows == 20
    assert len(report.files) > 1
    assert report.nbytes == sum(os.path.getsize(file) for file in report.files)
    if format == "webdataset":
        found = list(read_webdataset(str(tmp_path), sample=("png" if lossless else "jpg", "cls")))
    elif format == "tfrecord":
        found = [(s["image"], s["label"]) for s in read_tfrecords(str(tmp_path), images="image")]
    else:
        found = [(decoded(s["image"]), s["label"]) for s in read_parquet(str(tmp_path))]
    assert [int(np.ravel(label)[0]) for _, label in found] == list(range(20))
    for n, (image, _) in enumerate(found):
        assert np.abs(image.astype(int) - picture(n)).max() <= (0 if lossless else 12)


def decoded(data: bytes) -> np.ndarray:
    return cv2.cvtColor(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)


def test_tables_come_back_from_parquet(tmp_path):
    report = table().batch(7).write(tmp_path, shard_size="6KB")
    assert len(report.files) > 2
    found = list(read_parquet(str(tmp_path)))
    assert [row["n"] for row in found] == list(range(500))
    assert [row["word"] for row in found] == [f"w{i}" for i in range(500)]
    assert np.array_equal(np.stack([np.asarray(row["x"]) for row in found]).ravel(), np.arange(1500))


def test_images_are_resized(tmp_path):
    pictures(3).write(tmp_path, "webdataset", size=16)
    assert [s["jpg"].shape for s in read_webdataset(str(tmp_path))] == [(16, 16, 3)] * 3


@pytest.mark.parametrize("format", FORMATS)
def test_a_killed_write_goes_on_to_the_same_files(format, tmp_path):
    program = f"""
        import sys, time
        from tests.unit.write.test_write import pictures
        def slow(rows, nbytes):
            if rows == 30:
                print("ready", flush=True)
                time.sleep(60)
        pictures(60).write(sys.argv[1], "{format}", shard_size="10KB", progress=slow)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "killed")], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    done = len(json.loads((tmp_path / "killed" / "_manifest.json").read_text())["shards"])
    assert done >= 1
    seen: list[int] = []
    resumed = pictures(60).write(
        tmp_path / "killed", format, shard_size="10KB", progress=lambda rows, nbytes: seen.append(rows)
    )
    assert 1 < seen[0] <= 31
    whole = pictures(60).write(tmp_path / "whole", format, shard_size="10KB")
    assert (resumed.rows, resumed.checksum) == (60, whole.checksum)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert not list((tmp_path / "killed").glob(".partial*"))


def test_a_finished_write_is_checked_and_not_done_again(tmp_path):
    first = table(50).write(tmp_path)
    assert table(50).write(tmp_path, progress=lambda *_: pytest.fail("written again")) == first
    with open(first.files[0], "r+b") as file:
        file.seek(10)
        file.write(b"\x00\x01\x02")
    with pytest.raises(DataError, match="not as it was written"):
        table(50).write(tmp_path)


def test_shards_of_other_data_are_not_replaced_unasked(tmp_path):
    table(500).write(tmp_path, shard_size="6KB")
    with pytest.raises(InvalidInput, match="other data or other options"):
        table(40).write(tmp_path)
    report = table(40).write(tmp_path, overwrite=True)
    assert sorted(contents(tmp_path)) == [os.path.basename(file) for file in report.files]
    assert len(elements(read_parquet(str(tmp_path)))) == 40


@pytest.mark.parametrize(
    ("options", "message"), [({"format": "zip"}, "format must be"), ({"quality": 0}, "quality must be")]
)
def test_wrong_options_are_one_sentence(options, message, tmp_path):
    with pytest.raises(InvalidInput, match=message):
        table(3).write(tmp_path, **options)


@pytest.mark.parametrize("format", FORMATS)
def test_the_command_packs_a_folder_of_images(format, tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "in" / name).mkdir(parents=True)
        for n in range(3):
            cv2.imwrite(str(tmp_path / "in" / name / f"{n}.png"), picture(n))
    command = ["pack", str(tmp_path / "in"), str(tmp_path / "out"), "--format", format, "--size", "16"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0
    assert "6 rows in 1 files" in result.output
    packed = open_any(tmp_path / "out")
    assert kind_of(str(tmp_path / "out")) == SUFFIX[format][1:]
    assert len(elements(packed)) == 6


def test_the_command_keeps_pictures_of_tar_files_and_tells_its_pace(tmp_path):
    pictures(30).write(tmp_path / "tar", "webdataset")
    command = ["pack", str(tmp_path / "tar"), str(tmp_path / "out"), "--format", "tfrecord"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert "30 rows in 1 files" in result.output and "rows/s" in result.output
    kept = [row["jpg"] for row in read_webdataset(str(tmp_path / "tar"), decode={"jpg": "bytes"})]
    assert [bytes(row["jpg"]) for row in read_tfrecords(str(tmp_path / "out"))] == [bytes(data) for data in kept]
    assert "nothing new" in CliRunner().invoke(app, command, catch_exceptions=False).output
