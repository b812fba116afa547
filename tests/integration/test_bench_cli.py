"""`penstock bench` on small real data: it runs to its end and its numbers hold together."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path

import cv2
import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent))
import postgres_server

from penstock.bench import run as run_module
from penstock.cli.main import app
from penstock.core.errors import NotFound


def run(*command: str) -> str:
    result = CliRunner().invoke(app, ["bench", *command], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture(autouse=True)
def all_the_time_in_the_world(monkeypatch):
    """A slow machine that compiles its kernels first may not leave trials out."""
    monkeypatch.setattr(run_module, "_PATIENCE_S", 1e9)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (folder / "photos" / name).mkdir(parents=True)
        for index in range(50):
            picture = rng.integers(0, 255, (60, 80, 3), dtype=np.uint8)
            cv2.imwrite(str(folder / "photos" / name / f"{index}.jpg"), picture)
    table = pa.table({name: rng.standard_normal(30_000) for name in "abcd"})
    pyarrow.csv.write_csv(table, folder / "table.csv")
    pyarrow.parquet.write_table(table, folder / "table.parquet", row_group_size=5000)
    (folder / "mine.py").write_text("def keep(image, label):\n    return image, label\n")
    return folder


def test_images_with_a_function_and_a_picture(data, tmp_path, newly_held):
    plot = tmp_path / "out.html"
    told = json.loads(run(
        str(data / "photos"), "--size", "32", "--batch", "4", "--step-ms", "1", "--seconds", "1.5",
        "--map", f"{data}/mine.py:keep", "--plot", str(plot), "--json",
    ))  # fmt: skip
    facts, verdict = told["facts"], told["verdict"]
    assert facts["sample"]["rows"] == 100 and facts["sample"]["row_nbytes"] == pytest.approx(32 * 32 * 3 + 8)
    assert verdict["bottleneck"] in ("storage", "decode", "function", "consumer")
    assert verdict["capacities"]["consumer"] == pytest.approx(4000)
    assert facts["function"] > 0 and facts["decode"] > 0
    tried = {trial["name"]: trial for trial in facts["trials"]}
    assert list(tried) == [
        "cache in memory", "cache in a folder", "pack the files", "pack resized to 32", "decode at a smaller scale",
    ]  # fmt: skip
    assert all(trial["warm"] > 0 for trial in tried.values())
    assert tried["pack resized to 32"]["needs_nbytes"] < tried["pack the files"]["needs_nbytes"]
    assert "<svg" in plot.read_text() and "bottleneck" in plot.read_text()
    assert newly_held() == {}


def test_a_table_as_text_and_a_png(data, tmp_path):
    plot = tmp_path / "out.png"
    text = run(str(data / "table.csv"), "--batch", "256", "--step-ms", "0", "--seconds", "1", "--plot", str(plot))
    assert "is the bottleneck" in text and "pack as Parquet" in text and "memcpy" in text
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_parquet_without_trials_and_shuffle(data):
    told = json.loads(run(
        str(data / "table.parquet"), "--batch", "256", "--step-ms", "1", "--seconds", "0.5", "--no-trials",
        "--no-shuffle", "--json",
    ))  # fmt: skip
    assert told["facts"]["trials"] == [] and told["facts"]["sample"]["rows"] == 30_000
    assert told["rows_per_s"]["free"] > 0 and 0 <= told["waited"]["cached"] <= 1


def test_sqlite_by_its_address_with_its_only_table(data, tmp_path, newly_held):
    place = tmp_path / "readings.db"
    with sqlite3.connect(place) as connection:
        connection.execute("create table readings (id integer primary key, x real, y real)")
        connection.executemany("insert into readings values (?, ?, ?)", ((i, i / 7, i % 3) for i in range(20_000)))
    connection.close()
    told = json.loads(run(f"sqlite:///{place}", "--batch", "64", "--step-ms", "1", "--seconds", "1", "--json"))
    facts, verdict = told["facts"], told["verdict"]
    assert facts["sample"]["kind"] == "sql" and facts["sample"]["rows"] == 20_000
    assert verdict["bottleneck"] in ("storage", "decode", "consumer") and verdict["later"] == verdict["bottleneck"]
    assert set(verdict["capacities"]) == {"storage", "decode", "prepare", "consumer"}
    assert min(verdict["capacities"].values()) > 0 and facts["cold"]["rows"] > 0 and facts["cached"]["rows"] > 0
    assert [trial["name"] for trial in facts["trials"]] == ["cache in memory", "cache in a folder", "pack as Parquet"]
    assert all(trial["warm"] > 0 for trial in facts["trials"])
    assert newly_held() == {}


def test_pictures_in_a_database_are_decoded(data, tmp_path):
    photos = sorted((data / "photos").rglob("*.jpg"))
    with sqlite3.connect(tmp_path / "photos.db") as connection:
        connection.execute("create table photos (id integer primary key, jpeg blob)")
        connection.executemany("insert into photos values (?, ?)", ((i, p.read_bytes()) for i, p in enumerate(photos)))
    connection.close()
    told = json.loads(run(
        str(tmp_path / "photos.db"), "--size", "16", "--batch", "4", "--step-ms", "0", "--seconds", "0.5",
        "--no-trials", "--json",
    ))  # fmt: skip
    assert told["facts"]["sample"]["row_nbytes"] == pytest.approx(16 * 16 * 3 + 8)


@pytest.mark.skipif(postgres_server.binaries() is None, reason="no PostgreSQL server is installed")
def test_a_slow_query_is_named_as_the_bottleneck_and_packing_is_tried():
    with postgres_server.server() as uri:
        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute("create table small (id int primary key, x float8)")
            connection.execute("insert into small select i, i / 7.0 from generate_series(1, 400) i")
            # 5 ms a row, whatever the machine: reading and shaping 400 rows takes microseconds each.
            connection.execute("create view slow as select id, x, pg_sleep(0.005) is null as waited from small")
        slow = "select id, x, waited from slow"
        text = run(uri, "--query", slow, "--batch", "8", "--step-ms", "0", "--seconds", "2")
        assert text.startswith("The database is the bottleneck: the consumer waits for its rows.")
        assert "-> pack as Parquet" in text and "-> cache in memory" in text
        assert "rows from the database" in text and "tester:***@" in text and "pa%3Ass" not in text
        # A table with a key, by its name: read in ranges.
        told = json.loads(run(uri, "--query", "small", "--batch", "8", "--seconds", "1", "--no-trials", "--json"))
        assert told["facts"]["sample"]["rows"] == 400 and told["verdict"]["capacities"]["storage"] > 0


def test_mistakes_are_named_before_anything_is_measured(data, tmp_path):
    with pytest.raises(NotFound, match="nothing here"):
        run(str(tmp_path / "nothing here"))
    result = CliRunner().invoke(app, ["bench", str(data / "table.csv"), "--plot", str(tmp_path / "x.gif")])
    assert ".html or .png" in str(result.exception)
    result = CliRunner().invoke(app, ["bench", "--help"])
    assert "penstock bench photos/" in result.stdout
