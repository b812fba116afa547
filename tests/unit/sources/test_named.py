"""Items of map-style datasets: what the first one is like, when there is none or it fails."""

from __future__ import annotations

import pytest

from penstock.core.errors import BadData, NotFound
from penstock.read.named import from_torch, list_files


class Failing:
    """Items of which the first `bad` cannot be had."""

    def __init__(self, bad: int) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 5

    def __getitem__(self, i: int) -> int:
        if i < self.bad:
            raise OSError("gone")
        return i


def test_a_dataset_without_items_is_told():
    with pytest.raises(NotFound, match=r"items\(list\) has no item: its len\(\) is 0\."):
        list(from_torch([]).batch(2))


def test_a_first_item_that_fails_is_named_or_skipped():
    with pytest.raises(BadData, match="item 0: OSError: gone"):
        list(from_torch(Failing(2)))
    assert [int(n) for n in from_torch(Failing(2), on_error="skip")] == [2, 3, 4]
    with pytest.raises(BadData, match="item 4: OSError: gone"):
        list(from_torch(Failing(5), on_error="skip"))


def test_a_folder_in_a_list_is_listed(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("b", "a.txt", ".hidden"):
        (folder / name).write_text("x")
    assert list(list_files([folder])) == [f"{folder}/a.txt", f"{folder}/b"]
