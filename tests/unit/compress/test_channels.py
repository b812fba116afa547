from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.compress.thin.channels import Slot, Trace, cut
from penstock.core.errors import InvalidInput


def two_layers(first: int, second: int) -> tuple[Trace, np.ndarray, np.ndarray]:
    trace = Trace()
    a, b = trace.channels.fresh(first, "a"), trace.channels.fresh(second, "b")
    trace.slot("a", 1, a, scored=True)
    trace.slot("b", 1, b, scored=True)
    return trace, a, b


@given(st.integers(1, 20), st.integers(1, 20), st.floats(0.05, 1.0))
def test_each_layer_keeps_its_fraction_and_at_least_one(first: int, second: int, fraction: float) -> None:
    trace, a, b = two_layers(first, second)
    keep = trace.keep(np.arange(first + second, dtype=float), fraction)
    assert keep[a].sum() == min(first, max(1, round(first * fraction)))
    assert keep[b].sum() == min(second, max(1, round(second * fraction)))


def test_the_heaviest_channels_stay() -> None:
    trace, a, _ = two_layers(4, 2)
    weights = {"a": np.array([[1.0, 9.0, 2.0, 8.0]]), "b": np.ones((4, 2))}
    keep = trace.keep(trace.scores(weights), 0.5)
    assert keep[a].tolist() == [False, True, False, True]


def test_joined_layers_live_and_die_together() -> None:
    trace, a, b = two_layers(6, 6)
    trace.channels.join(a, b, "add")
    keep = trace.keep(np.arange(12.0)[::-1].copy(), 0.5)
    assert keep[a].tolist() == keep[b].tolist()
    assert keep[a].sum() == 3


def test_joining_different_sizes_is_refused_by_name() -> None:
    trace, a, b = two_layers(3, 4)
    with pytest.raises(InvalidInput, match="residual joins 3 with 4"):
        trace.channels.join(a, b, "residual")


def test_a_pin_holds_the_whole_family() -> None:
    trace, a, b = two_layers(4, 4)
    trace.channels.join(a, b, "add")
    trace.leave(b, "because")
    with pytest.raises(InvalidInput, match="because"):
        trace.keep(np.zeros(8), 0.5)


def test_global_scope_takes_the_weakest_wherever_they_are() -> None:
    trace, a, b = two_layers(4, 4)
    keep = trace.keep(np.array([1.0, 2, 3, 4, 10, 11, 12, 13]), 0.5, scope="global")
    assert keep[b].all()
    assert keep[a].sum() == 1  # every layer keeps one, else the graph is cut in two


def test_multiple_rounds_to_whole_groups() -> None:
    trace, a, b = two_layers(32, 12)
    keep = trace.keep(np.arange(44.0), 0.4, multiple=8)
    assert (keep[a].sum(), keep[b].sum()) == (16, 8)


def test_cutting_a_flattened_axis_takes_every_pixel_of_a_channel() -> None:
    _, a, _ = two_layers(3, 1)
    keep = np.array([True, False, True, True])
    kernel = np.arange(6)[:, None]
    assert cut(kernel, [Slot("k", 0, np.tile(a, 2))], keep).ravel().tolist() == [0, 2, 3, 5]
