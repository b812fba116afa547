"""An optimizer step in units: planned within its allowance, taken to the end, undone where it fails."""

from __future__ import annotations

import signal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.guard.recovery.undo import roll_forward as rolling
from penstock.guard.recovery.undo.file import UndoFile, bytes_of
from penstock.guard.recovery.undo.units import Item, allowance, largest, plan

items = st.builds(
    Item, numel=st.integers(1, 10_000), nbytes_each=st.sampled_from([2.0, 4.0, 12.0, 12.5]), sliceable=st.booleans()
)


@settings(deadline=None)
@given(items=st.lists(items, max_size=12), nbytes=st.integers(64, 50_000))
def test_units_cover_every_element_once_and_stay_small(items, nbytes):
    units = plan(items, nbytes)
    seen = [np.zeros(item.numel, int) for item in items]
    for unit in units:
        for piece in unit:
            seen[piece.item][piece.start : piece.stop] += 1
        alone = len(unit) == 1 and not items[unit[0].item].sliceable
        assert alone or sum((p.stop - p.start) * items[p.item].nbytes_each for p in unit) <= nbytes
    assert all((found == 1).all() for found in seen)
    assert largest(items, units) <= max([nbytes, *(item.nbytes for item in items if not item.sliceable)])


def test_the_allowance_is_a_small_share():
    large = [Item(50_000_000, 12.0)]
    assert allowance(large) <= 0.05 * 600e6
    assert allowance([Item(10, 4.0)]) == 2**20


class Counted:
    """Units that add one to their number, and fail as told; half of the change is made before the failure."""

    def __init__(self, fail):
        self.values, self.kept, self.fail = [0] * 5, {}, fail

    def save(self, unit):
        self.kept[unit] = self.values[unit]

    def take(self, unit):
        self.values[unit] += 100
        if self.fail.get(unit):
            self.fail[unit] -= 1
            raise MemoryError
        self.values[unit] -= 99

    def restore(self, unit):
        self.values[unit] = self.kept[unit]


def test_a_unit_that_fails_is_taken_again_and_the_others_once():
    units = Counted({2: 3, 4: 1})
    rolling.roll_forward(range(5), units, who="test")
    assert units.values == [1] * 5


def test_the_first_unit_may_fail_with_nothing_changed():
    units = Counted({0: 1})
    with pytest.raises(MemoryError):
        rolling.roll_forward(range(5), units, who="test")
    assert units.values == [0] * 5


def test_a_step_that_cannot_end_says_that_it_is_torn(monkeypatch):
    monkeypatch.setattr(rolling, "PATIENCE_S", 0.05)
    with pytest.raises(rolling.OutOfMemory, match="between two steps: resume from the last checkpoint"):
        rolling.roll_forward(range(5), Counted({3: 10**6}), who="test")


def test_an_interrupt_waits_for_the_end_of_the_step():
    class Interrupted(Counted):
        def take(self, unit):
            if unit == 1:
                signal.raise_signal(signal.SIGINT)
            super().take(unit)

    units = Interrupted({})
    with pytest.raises(KeyboardInterrupt):
        rolling.roll_forward(range(5), units, who="test")
    assert units.values == [1] * 5


def test_a_file_gives_back_what_was_written():
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=n).astype(np.float32) for n in (0, 1, 7, 300_000)]
    file = UndoFile()
    file.save([bytes_of(array) for array in arrays])
    found = [np.empty_like(array) for array in arrays]
    file.load([bytes_of(array) for array in found])
    assert all(np.array_equal(a, b) for a, b in zip(arrays, found, strict=True))
    with pytest.raises(EOFError):
        file.load([np.empty(10**7, np.uint8)])
    file.close()
