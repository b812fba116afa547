"""Which tensors travel together when ranks add up their gradients."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from penstock.guard.ranks.torch import groups  # noqa: E402


def test_small_tensors_of_a_kind_travel_together_and_all_keep_their_order() -> None:
    large, small = torch.zeros(1 << 18), torch.zeros(4)
    half, scalar = torch.zeros(8, dtype=torch.float16), torch.zeros(())
    sparse = torch.zeros(3).to_sparse()
    medium = torch.zeros(3 << 16)
    given = [small, scalar, large, small, half, half, sparse, small, medium, medium]
    found = list(groups(given))
    assert [len(group) for group in found] == [2, 1, 1, 2, 1, 2, 1]
    flat = [array for group in found for array in group]
    assert all(a is b for a, b in zip(flat, given, strict=True))
    assert list(groups([])) == []
