"""A fraction of damaged rows is the fraction of the rows, for every reader, on both sides of the limit."""

from __future__ import annotations

import pytest

from penstock.core.errors import BadData, TooManyErrors
from penstock.core.source import OnError
from tests.contract.readers import READERS, Reader

DAMAGING = [reader for reader in READERS if reader.damages]
ROWS = 160
EVERY_20TH = frozenset(range(7, ROWS, 20))  # 8 of 160 rows: 5 %


@pytest.mark.parametrize("reader", DAMAGING, ids=lambda reader: reader.name)
@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
def test_a_fraction_is_judged_alike_by_every_reader(reader: Reader, shuffled: bool, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "data"
    folder.mkdir()
    reader.write(folder, ROWS, EVERY_20TH)

    def rows(max_errors):
        ds = reader.read(folder, on_error="skip", max_errors=max_errors)
        return [reader.number(element) for element in (ds.shuffle(seed=1) if shuffled else ds)]

    assert sorted(rows(0.07)) == [i for i in range(ROWS) if i not in EVERY_20TH]
    with pytest.raises(TooManyErrors) as found:
        rows(0.03)
    assert found.value.count > 0.03 * found.value.seen and found.value.seen <= ROWS


def test_only_the_engine_counts_rows(tmp_path):
    reader = READERS[0]
    reader.write(tmp_path, 40, {3, 9})
    ds = reader.read(tmp_path, on_error="skip")
    assert len(list(ds)) == 38
    policy = ds.node.step.source.on_error
    assert (policy.count, policy.seen) == (2, 38)


def test_damage_at_the_head_of_a_large_block_is_judged_with_the_whole_block():
    policy = OnError("skip", 0.05)
    for i in range(150):
        policy.bad(BadData(f"row {i}", "damaged"))
    policy.good(9_850)
    for i in range(400):
        policy.bad(BadData(f"row {i}", "damaged"))
    with pytest.raises(TooManyErrors, match="550 damaged"):
        policy.good(100)


def test_few_rows_are_judged_only_when_they_are_all():
    policy = OnError("skip", 0.05)
    policy.bad(BadData("row 0", "damaged"))
    policy.good(9)
    policy.ended(whole=False)
    with pytest.raises(TooManyErrors, match="1 damaged"):
        policy.ended(whole=True)
