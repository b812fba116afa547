"""Rewrites: what sinks, and what must not."""

from __future__ import annotations

from penstock.plan.rewrite import rewrite
from tests.contract.chains import double, even, rows, units


def verbs(ds):
    node, found = rewrite(ds.node), []
    while node.inputs:
        found.insert(0, type(node.step).__name__)
        node = node.input
    return found


def test_a_shuffle_sinks_below_maps_and_filters_of_samples():
    assert verbs(rows().map(double).filter(even).shuffle(seed=1).batch(4)) == ["Shuffle", "Map", "Filter", "Batch"]


def test_a_shuffle_of_batches_stays():
    assert verbs(rows().batch(4).map(double).shuffle(seed=1)) == ["Batch", "Shuffle", "Map"]


def test_a_shuffle_stays_above_functions_of_blocks():
    assert verbs(units().map_batches(double).shuffle(seed=1)) == ["MapBatches", "Shuffle"]


def test_a_shard_sinks_to_the_source_but_not_below_batches():
    assert verbs(rows().map(double).shuffle(seed=1).shard(0, 2).batch(4)) == ["Shard", "Shuffle", "Map", "Batch"]
    assert verbs(rows().batch(4).shard(0, 2)) == ["Batch", "Shard"]


def test_hints_are_dropped():
    assert verbs(rows().batch(4).prefetch(2)) == ["Batch"]


def test_explain_shows_fusion_and_bytes():
    text = units((5000,) * 3).map(double).shuffle(seed=1).batch(64).explain()
    assert "shuffle units (seed 1)" in text
    assert "mix rows of a window" in text
    assert "map(double)" in text
    assert "512 B a batch" in text
    direct = rows().shuffle(seed=1).batch(8).explain()
    assert "shuffle rows, exactly" in direct and "decode straight into batch(8)" in direct


def test_print_shows_the_plan_as_written():
    assert str(rows().map(double).shuffle(seed=1).batch(4)).splitlines() == [
        "read numbers(20)",
        "-> map(double)",
        "-> shuffle(seed=1)",
        "-> batch(4)",
    ]
