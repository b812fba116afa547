"""Copies and scratch that are easily forgotten are on lease, under their names, and come back."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import simplejpeg

import penstock as ps
from penstock.dataset import Dataset
from penstock.engine.pipe import pipe
from penstock.memory.budget import Budget
from tests.stand_ins import NumberRows, NumberUnits


@pytest.fixture
def booked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The most bytes that each name had on lease at once."""
    most: Counter[str] = Counter()
    count = Budget._count

    def watched(self: Budget, who: str, change: int) -> None:
        count(self, who, change)
        most[who] = max(most[who], self._holders.get(who, 0))

    monkeypatch.setattr(Budget, "_count", watched)
    return most


def drained(ds: Any) -> list[Any]:
    found = [np.asarray(batch).tolist() for batch in ds]
    budget = pipe().budget
    assert budget is not None and budget.used == 0 and not budget.holders()
    return found


def test_the_order_of_a_window(booked: Counter[str]) -> None:
    drained(Dataset.of(NumberUnits((40, 50, 60), 10)).shuffle(seed=1, window=100).batch(7))
    assert booked["shuffle order"] >= 8 * 100


def test_the_index_and_scratch_of_a_gather(booked: Counter[str]) -> None:
    drained(Dataset.of(NumberUnits((40, 50, 60), 10)).shuffle(seed=1).batch(150))
    assert booked["batches"] >= 150 * 8 + 150 * 24


def test_rows_that_zip_joins(booked: Counter[str]) -> None:
    shuffled = Dataset.of(NumberUnits((400,) * 5, 100)).shuffle(seed=1)
    found = drained(shuffled.zip(Dataset.of(NumberRows(2000))).map(lambda a, b: a - b).batch(10))
    assert booked["joined rows"] >= 8 * 100
    assert sum(map(sum, found)) == 0


def test_batches_that_unbatch_joins(booked: Counter[str]) -> None:
    found = drained(Dataset.of(NumberUnits((400,) * 5, 100)).batch(10).unbatch().batch(1000))
    assert booked["joined rows"] >= 8 * 100
    assert [v for batch in found for v in batch] == list(range(2000))


def test_the_scratch_of_a_decoder(booked: Counter[str], tmp_path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (200, 300, 3), np.uint8)
    for number in range(12):
        (tmp_path / f"{number}.jpg").write_bytes(simplejpeg.encode_jpeg(pixels))
    assert sum(1 for _ in ps.read_images(str(tmp_path), size=(32, 32)).batch(4)) == 3
    budget = pipe().budget
    assert budget is not None and budget.used == 0
    assert booked["decode"] >= 200 * 300 * 3
