"""Learned a block at a time: the same numbers as over everything at once."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.train.statistics import Spread, Tally, as_text, lengths_of, words_of


def test_mean_and_deviation_of_blocks_are_those_of_all():
    rng = np.random.default_rng(0)
    x = rng.normal(1e6, 3, (1000, 4))
    x[rng.random(x.shape) < 0.1] = np.nan
    x[:, 3] = 7.0
    total = Spread.of(x[:1])
    for first in range(1, 1000, 37):
        total.merge(Spread.of(x[first : first + 37]))
    np.testing.assert_allclose(total.mean, np.nanmean(x, axis=0), rtol=1e-12)
    np.testing.assert_allclose(total.std[:3], np.nanstd(x, axis=0)[:3], rtol=1e-7)
    assert total.std[3] == 1.0
    assert total.missing.tolist() == np.isnan(x).sum(axis=0).tolist()


def test_infinities_are_missing():
    found = Spread.of(np.array([[1.0], [np.inf], [3.0]]))
    assert (found.mean[0], found.missing[0]) == (2.0, 1)


def test_a_tally_forgets_the_rare_and_keeps_the_frequent():
    total = Tally(most=100)
    for block in range(50):
        values = [f"rare {block} {n}" for n in range(20)] + ["often", "also often"] * 5
        total.merge(Tally.of(as_text(np.array(values, object))))
    assert total.top(2) == ["also often", "often"]
    assert total.counts["often"] == 250
    assert len(total.counts) <= 100 and total.forgotten > 0
    assert total.forgotten + sum(total.counts.values()) == 50 * 30


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (np.array([1.0, np.nan, 3.0]), ["1", None, "3"]),
        (np.array([1.5, 2.0]), ["1.5", "2"]),
        (np.array([True, False]), ["1", "0"]),
        (np.array(["a", None], object), ["a", None]),
        (np.array([1, "b", None], object), ["1", "b", None]),
        (np.array([2**60, 5]), [str(2**60), "5"]),
    ],
)
def test_values_as_text(column, expected):
    assert as_text(column).to_pylist() == expected


def test_words():
    texts = np.array(["Hello, World! it's", None, "", "  Ünï 3.5 "], object)
    words = words_of([texts])
    assert words.to_pylist() == [["hello", "world", "it's"], [""], [""], ["ünï", "3", "5"]]
    assert lengths_of(words).quantile(1.0) == 3
    joined = words_of([texts, np.array(["x", "y z", None, None], object)])
    assert joined.to_pylist()[1] == ["y", "z"]
