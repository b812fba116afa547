"""Samples, the page cache, machine limits and runs, on small real files."""

from __future__ import annotations

import logging
from pathlib import Path

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from penstock.bench import bench, limits
from penstock.bench.chain import BenchPlan
from penstock.bench.measure import from_storage, nbytes_of_batch, steady_flow, synthetic
from penstock.bench.sample import SampledRows, SampledUnits, subject_of
from penstock.core.errors import InvalidInput, NotFound
from penstock.core.user.code import load_function
from penstock.engine.pipe import pipe
from penstock.read import read_csv, read_images

ROWS = 20_000

pytestmark = pytest.mark.real_time  # a consumer that takes its time is what is measured


@pytest.fixture(scope="module")
def csv(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("csv") / "table.csv"
    rng = np.random.default_rng(0)
    pyarrow.csv.write_csv(pa.table({name: rng.standard_normal(ROWS) for name in "abcd"}), path)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for name in ("a", "b"):
        (folder / name).mkdir()
        for index in range(30):
            picture = np.random.default_rng(index).integers(0, 255, (48, 64, 3), dtype=np.uint8)
            cv2.imwrite(str(folder / name / f"{index}.jpg"), picture)
    return folder


def test_a_sample_of_rows_is_spread_over_all(photos):
    whole = read_images(str(photos), size=32)
    subject = subject_of(whole, str(photos), most_nbytes=40_000)
    assert isinstance(subject.source, SampledRows)
    assert 2 < len(subject.source.rows) < 60
    assert {Path(file).parent.name for file in subject.files} == {"a", "b"}
    total = sum(path.stat().st_size for path in photos.rglob("*.jpg"))
    assert subject.rows == 60 and subject.images and subject.nbytes == pytest.approx(total, rel=0.2)
    wanted = list(whole)
    for number, (image, label) in zip(subject.source.rows, subject.dataset):
        assert np.array_equal(image, wanted[number][0]) and label == wanted[number][1]


def test_a_sample_of_units_is_the_first_blocks_of_some(csv):
    subject = subject_of(read_csv(str(csv)), str(csv), rows=100)
    assert isinstance(subject.source, SampledUnits)
    assert subject.row_stored == pytest.approx(csv.stat().st_size / ROWS, rel=0.2)
    blocks = list(subject.source.open(0))
    assert max(len(block) for block in blocks) == 100 and sum(map(len, blocks)) == ROWS
    rest = list(subject.source.open(0, 3))
    assert rest[0].columns["a"][0] == blocks[3].columns["a"][0] and len(rest) == len(blocks) - 3
    with iter(subject.dataset) as rows:
        taken = [next(rows) for _ in range(250)]
        position = rows.position
    with iter(subject.dataset.resume(position)) as rows:
        following = next(rows)
    assert following["a"] == blocks[2].columns["a"][50] and taken[249]["a"] == blocks[2].columns["a"][49]


def test_an_empty_dataset_is_named(tmp_path):
    (tmp_path / "e.csv").write_text("a,b\n")
    with pytest.raises(NotFound, match=r"e\.csv"):
        bench(BenchPlan(str(tmp_path / "e.csv"), seconds=0.1))


def test_files_leave_memory_and_come_back(csv):
    csv.read_bytes()
    assert limits._resident(str(csv))
    if not limits.forget([str(csv)]):
        pytest.skip("this file system keeps its pages")
    assert not limits._resident(str(csv))
    assert limits.read_rate([str(csv)], 5.0) > 0
    assert limits._resident(str(csv))


def test_limits_are_measured_under_leases(csv, photos):
    next(iter(read_csv(str(csv)).batch(10)))
    before = pipe().budget.used
    assert limits.copy_rate(0.02) > 0
    assert limits.read_rate([str(p) for p in photos.rglob("*.jpg")], 1.0) > 0
    table = subject_of(read_csv(str(csv)), str(csv)).source
    pictures = subject_of(read_images(str(photos), size=32), str(photos)).source
    ragged = subject_of(read_images(str(photos)), str(photos)).source
    assert all(limits.decode_rate(source, 0.05) > 0 for source in (table, pictures, ragged))
    assert pipe().budget.used <= before


def test_every_piece_of_a_file_is_read_once(csv, photos, monkeypatch):
    monkeypatch.setattr(limits, "PIECE_NBYTES", 10_000)
    files = [str(csv), *map(str, photos.rglob("*.jpg"))]
    pieces = limits._pieces(files)
    nbytes = sum(length or Path(path).stat().st_size for path, _, length in pieces)
    assert nbytes == sum(Path(file).stat().st_size for file in files)
    assert len({piece[:2] for piece in pieces}) == len(pieces)


def test_a_run_counts_rows_and_waiting(csv):
    plan = BenchPlan(str(csv), batch=64)
    chain = plan.chain(read_csv(str(csv)))
    free = steady_flow(chain, 0.1)
    assert free.rows >= 3 * 32 and free.rows % 32 == 0  # the last batch of a pass has 32 rows
    assert 0 < free.waited_s <= free.wall_s and free.cpu_s > 0
    batch = next(iter(chain))
    assert nbytes_of_batch(batch) == 64 * 4 * 8
    alone = synthetic(batch, 0.03, 0.005)
    assert alone.rows >= 3 * 64 and alone.waited < 1  # the steps are not waiting
    assert alone.wall_s - alone.waited_s >= alone.rows / 64 * 0.005


def test_passes_from_storage_forget_before_each(csv):
    forgotten: list[int] = []

    def forget() -> bool:
        forgotten.append(1)
        return True

    chain = BenchPlan(str(csv), batch=1000).chain(read_csv(str(csv)))
    found = from_storage(chain, 60.0, forget, step_s=1e-4, most_passes=3)
    assert found is not None and len(forgotten) == 3
    assert found.rows == 3 * (ROWS - 1000)  # the first batch of each pass is start-up
    assert from_storage(chain, 1.0, lambda: False) is None


def test_a_function_is_found_in_a_file(tmp_path):
    (tmp_path / "mine.py").write_text("def double(row):\n    return row\n\nvalue = 3\n")
    assert load_function(f"{tmp_path}/mine.py:double")({"a": 1}) == {"a": 1}
    assert load_function("json:dumps")([1]) == "[1]"
    for text, message in (
        ("mine.py", "module.py:function"), (f"{tmp_path}/mine.py:value", "no function 'value'"),
        (f"{tmp_path}/none.py:f", "There is no Python file"), ("no_such_module:f", "no module"),
    ):  # fmt: skip
        with pytest.raises((InvalidInput, NotFound), match=message):
            load_function(text)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(InvalidInput, match="ZeroDivisionError"):
        load_function(f"{tmp_path}/broken.py:f")


def test_advice_on_shuffling_is_about_the_whole_data_only(csv, caplog):
    log = logging.getLogger("penstock")

    def warns(what: str) -> None:
        if not caplog.messages:
            log.warning("shuffle of %s: coverage %.2f", "sample of csv(table.csv)", 0.5)
            log.warning("shuffle of %s: coverage %.2f", "csv(table.csv)", 0.5)

    bench(BenchPlan(str(csv), batch=64, step_s=0.001, seconds=0.5, trials=False), warns)
    assert [text for text in caplog.messages if text.startswith("shuffle of")] == [
        "shuffle of csv(table.csv): coverage 0.50"
    ]
    assert not log.filters
