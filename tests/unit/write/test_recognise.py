"""A path tells how it is read."""

from __future__ import annotations

import pytest

from penstock.core.errors import InvalidInput, NotFound
from penstock.read.recognise.formats import kind_of, open_any
from tests.contract.chains import elements


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("a/train.csv", "csv"),
        ("a/*.csv.gz", "csv"),
        ("s3://bucket/part-*.parquet", "parquet"),
        ("train.tfrecord-00001-of-00010", "tfrecord"),
        ("shards/{000..009}.tar", "tar"),
        ("lines.jsonl.zst", "jsonl"),
        ("photos/*.JPG", "jpg"),
    ],
)
def test_endings(path, kind):
    assert kind_of(path) == kind


def test_a_folder_is_what_most_of_its_files_are(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "readme.txt").write_text("about")
    (tmp_path / ".hidden.parquet").write_text("")
    for n in range(2):
        (tmp_path / "deep" / f"{n}.csv").write_text(f"a,b\n{n},2\n")
    assert kind_of(str(tmp_path)) == "csv"
    (tmp_path / "readme.txt").unlink()
    assert len(elements(open_any(tmp_path))) == 2


def test_what_cannot_be_recognised_is_one_sentence(tmp_path):
    with pytest.raises(NotFound, match="does not exist"):
        kind_of(str(tmp_path / "nothing"))
    with pytest.raises(InvalidInput, match="holds no file"):
        kind_of(str(tmp_path))
    (tmp_path / "data.xyz").write_text("")
    with pytest.raises(InvalidInput, match="known endings"):
        kind_of(str(tmp_path / "data.xyz"))
