"""Readers of Parquet files that wait for their next row group."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.sources.parquet import readers as parquet_readers
from penstock.sources.parquet.readers import Readers, nbytes_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"a": range(10)}), tmp_path / "a.parquet", row_group_size=5)
    return tmp_path / "a.parquet"


def test_a_reader_is_used_again_by_the_next_caller_of_its_file(path: Path) -> None:
    readers, made = Readers(), []

    def make() -> pq.ParquetFile:
        made.append(pq.ParquetFile(path))
        return made[-1]

    with readers.use(0, make, keep=True) as first, readers.use(0, make, keep=True) as beside:
        assert first is not beside
    with readers.use(0, make, keep=True) as again, readers.use(1, make, keep=True) as other:
        assert again in made[:2]
        assert other is made[2]
    assert len(made) == 3


def test_what_is_kept_is_bounded_in_bytes_however_many_files(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[pq.ParquetFile] = []
    monkeypatch.setattr(parquet_readers, "KEPT_NBYTES", 3 * nbytes_of(pq.ParquetFile(path)))
    readers = Readers()
    for file in range(10):
        with readers.use(file, lambda: opened.append(pq.ParquetFile(pa.OSFile(str(path)))) or opened[-1], keep=True):
            pass
    assert [reader.closed for reader in opened] == [True] * 7 + [False] * 3


def test_a_reader_that_failed_or_is_not_to_be_kept_is_closed(path: Path) -> None:
    readers = Readers()
    source = pq.ParquetFile(pa.OSFile(str(path)))
    with pytest.raises(ZeroDivisionError), readers.use(0, lambda: source, keep=True):
        raise ZeroDivisionError
    assert source.closed
    remote = pq.ParquetFile(pa.OSFile(str(path)))
    with readers.use(0, lambda: remote, keep=False):
        assert not remote.closed
    assert remote.closed


def test_open_files_do_not_travel(path: Path) -> None:
    readers = Readers()
    with readers.use(0, lambda: pq.ParquetFile(path), keep=True) as mine:
        pass
    copy = pickle.loads(pickle.dumps(readers))
    with copy.use(0, lambda: pq.ParquetFile(path), keep=True) as theirs:
        assert theirs is not mine
