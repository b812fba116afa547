from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.compress.thin.masks import Schedule, magnitude_masks, n_m_mask
from penstock.core.errors import InvalidInput


@given(st.floats(0, 0.99), st.integers(0, 20), st.integers(0, 50))
def test_sparsity_grows_and_ends_at_its_goal(final: float, begin: int, length: int) -> None:
    schedule = Schedule(final, begin, begin + length)
    along = [schedule.sparsity(step) for step in range(begin + length + 3)]
    assert along == sorted(along)
    assert along[-1] == final
    assert all(value == 0 for value in along[:begin])
    assert schedule.due(begin + length)


@given(st.integers(1, 200), st.floats(0, 0.99), st.integers(0, 5))
def test_magnitude_removes_the_asked_share_and_only_the_smallest(count: int, sparsity: float, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=count)
    mask = magnitude_masks({"w": values}, sparsity)["w"]
    assert (~mask).sum() == round(count * sparsity)
    if mask.any() and (~mask).any():
        assert np.abs(values[~mask]).max() <= np.abs(values[mask]).min()


def test_global_scope_compares_layers_in_their_own_units() -> None:
    even, uneven = np.ones(10), np.array([100.0] * 5 + [0.001] * 5)
    masks = magnitude_masks({"even": even, "uneven": uneven}, 0.25, scope="global")
    assert masks["even"].all()
    assert masks["uneven"].sum() == 5


@given(st.sampled_from([(1, 2), (2, 4), (1, 4)]), st.integers(1, 5), st.integers(1, 4))
def test_every_group_of_m_keeps_its_n_largest(ratio: tuple[int, int], groups: int, columns: int) -> None:
    n, m = ratio
    values = np.random.default_rng(groups).normal(size=(groups * m, columns))
    mask = n_m_mask(values, n, m, 0)
    assert mask is not None
    grouped = np.moveaxis(mask, 0, -1).reshape(-1, m)
    assert (grouped.sum(axis=1) == n).all()
    magnitudes = np.abs(np.moveaxis(values, 0, -1)).reshape(-1, m)
    assert (np.where(grouped, magnitudes, np.inf).min(1) >= np.where(grouped, -np.inf, magnitudes).max(1)).all()


def test_n_m_leaves_axes_that_m_does_not_divide() -> None:
    assert n_m_mask(np.ones((3, 2)), 2, 4, 0) is None
    with pytest.raises(InvalidInput, match="4:2"):
        n_m_mask(np.ones((4, 2)), 4, 2, 0)


@pytest.mark.parametrize("wrong", [{"final": 1.0}, {"final": -0.1}, {"final": 0.5, "begin": 3, "end": 2}])
def test_impossible_schedules_are_refused(wrong: dict) -> None:
    with pytest.raises(InvalidInput):
        Schedule(**wrong)
