"""`penstock train` and `penstock predict` on data that is neither a table file nor a folder, with the rarer options."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import psycopg
import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import postgres_server

from penstock.sources.tfrecord.write import encode_example, write_records
from penstock.watch.run_folder import read_events

ENV = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}
QUICKLY = ("--no-forecast", "--batch", "32", "--learning-rate", "0.02")
pytestmark = pytest.mark.timeout(900)


def penstock(*words: object) -> str:
    argv = [sys.executable, "-m", "penstock", *map(str, words)]
    done = subprocess.run(argv, env=ENV, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def predicted(run: Path, data: object, *words: object) -> list[str]:
    out = run / "predictions.parquet"
    printed = penstock("predict", run, data, "--out", out, *words)
    table = pq.read_table(out)
    assert f"{len(table):,} predictions" in printed
    return [str(value) for value in table["prediction"].to_pylist()]


def share_right(found: list[str], wanted: list[str]) -> float:
    assert len(found) == len(wanted)
    return float(np.mean([a == b for a, b in zip(found, wanted, strict=True)]))


def of_kind(run: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(run) if event["kind"] == kind]


def policies(run: Path) -> str:
    """What the saved model says about the precision of its layers."""
    with zipfile.ZipFile(run / "model.keras") as file:
        return file.read("config.json").decode()


def png(light: bool, seed: int) -> bytes:
    base = 150 if light else 30
    pixels = np.random.default_rng(seed).integers(base, base + 70, (12, 12, 3)).astype(np.uint8)
    return cv2.imencode(".png", pixels)[1].tobytes()


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    if postgres_server.binaries() is None:
        pytest.skip("no PostgreSQL server is installed")
    with postgres_server.server() as found:
        with psycopg.connect(found, autocommit=True) as connection:
            connection.execute(
                "create table clients as select i as id, sin(i) * 3 as a, cos(i * 7) as b, "
                "(array['north', 'south', 'west'])[i % 3 + 1] as area, "
                "case when sin(i) * 3 + (i % 3) > 1 then 'stays' else 'leaves' end as outcome "
                "from generate_series(1, 2500) i"
            )
        yield found


def test_a_postgresql_table_in_mixed_precision(tmp_path, uri):
    run = tmp_path / "run"
    query = "select a, b, area, outcome from clients order by id"
    printed = penstock("train", uri, "--query", query, "--target", "outcome", "--precision", "mixed", "--epochs", 5,
                       "--backend", "jax", "--out", run, *QUICKLY)  # fmt: skip
    assert "mixed_bfloat16" in policies(run)
    secret = "pa%3Ass%2Fw%40rd"
    kept = "".join(path.read_text(errors="replace") for path in run.rglob("*") if path.is_file())
    assert secret not in kept + printed and "pa:ss/w@rd" not in kept + printed
    with psycopg.connect(uri) as connection:
        truth = [str(row[0]) for row in connection.execute("select outcome from clients order by id")]
    found = predicted(run, uri, "--query", "select a, b, area from clients order by id")
    assert share_right(found, truth) > 0.9


def test_an_hdf5_file_with_a_limit_for_the_device(tmp_path):
    light = np.arange(300) % 2 == 1
    rng = np.random.default_rng(0)
    pixels = np.where(light[:, None, None, None], 150, 30) + rng.integers(0, 70, (300, 12, 12, 3))
    with h5py.File(tmp_path / "p.h5", "w") as file:
        file["pixels"] = pixels.astype(np.uint8)
        file["label"] = light.astype(np.int64)
    run = tmp_path / "run"
    penstock("train", tmp_path / "p.h5", "--device-memory", "512MB", "--epochs", 3, "--backend", "tensorflow",
             "--out", run, *QUICKLY)  # fmt: skip
    assert json.loads((run / "config.json").read_text())["device_memory"] == "512MB"
    (told,) = of_kind(run, "guard.devices")[-1:]
    assert not told["too_late"], "TensorFlow was told before it touched a device"
    assert "GPU" in told["done"]["tensorflow"]
    assert share_right(predicted(run, tmp_path / "p.h5"), [str(int(x)) for x in light]) > 0.95


def test_tfrecords_of_numbers(tmp_path):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1500, 6)).astype(np.float32)
    labels = (x[:, 0] + x[:, 1] > 0).astype(int)
    rows = (encode_example({"x": x[i], "size": float(i % 5), "label": int(labels[i])}) for i in range(len(x)))
    write_records(str(tmp_path / "t.tfrecord"), rows)
    run = tmp_path / "run"
    penstock("train", tmp_path / "t.tfrecord", "--epochs", 4, "--backend", "jax", "--out", run, *QUICKLY)
    assert share_right(predicted(run, tmp_path / "t.tfrecord"), [str(n) for n in labels]) > 0.9


def test_a_tar_of_pictures_then_a_model_from_a_file(tmp_path):
    with tarfile.open(tmp_path / "p.tar", "w") as tar:
        for i in range(160):
            for ending, data in (("png", png(i % 2 == 1, i)), ("cls", str(i % 2).encode())):
                entry = tarfile.TarInfo(f"{i:04}.{ending}")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    first, second = tmp_path / "first", tmp_path / "second"
    penstock(
        "train", tmp_path / "p.tar", "--image-size", 12, "--epochs", 6, "--backend", "jax", "--out", first, *QUICKLY
    )
    penstock("train", tmp_path / "p.tar", "--image-size", 12, "--epochs", 1, "--backend", "jax", "--out", second,
             "--model", first / "model.keras", *QUICKLY)  # fmt: skip
    began = [event["logs"] for event in of_kind(second, "train.epoch")]
    assert began[0]["accuracy"] > 0.9, "it goes on from the weights in the file"
    assert share_right(predicted(second, tmp_path / "p.tar"), [str(i % 2) for i in range(160)]) > 0.95
