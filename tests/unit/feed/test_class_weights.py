from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("keras")


@pytest.mark.parametrize(
    "labels",
    [np.array([0, 2, 1, 2]), np.array([[0.0], [2.0], [1.0], [2.0]]), np.eye(3)[[0, 2, 1, 2]]],
    ids=["numbers", "column", "one-hot"],
)
def test_rows_weigh_what_their_class_weighs(labels):
    from penstock.feed.keras import weights_of

    weights = weights_of(labels, {0: 0.5, 2: 3.0})
    assert weights.tolist() == [0.5, 3.0, 1.0, 3.0]
    assert weights.dtype == np.float32
