"""Random plans, budgets and worker counts: the same rows in the same order, none lost, none doubled."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.events import Events
from penstock.dataset import Dataset
from penstock.engine.buffers.batch import SlabPool
from penstock.engine.build import Builder
from penstock.engine.run import Run, StreamIterator
from penstock.engine.streams.stream import Context
from penstock.engine.workers.threads import Pool
from penstock.memory.budget import Budget
from penstock.plan.rewrite import rewrite
from tests.contract.chains import elements
from tests.stand_ins import NumberRows, NumberUnits

SOURCES = st.one_of(
    st.integers(0, 120).map(NumberRows),
    st.tuples(st.lists(st.integers(0, 25), min_size=1, max_size=9), st.integers(1, 9)).map(
        lambda made: NumberUnits(tuple(made[0]), made[1])
    ),
)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("shuffle"), st.integers(0, 9), st.one_of(st.none(), st.integers(1, 50))),
        st.tuples(st.just("map")),
        st.tuples(st.just("map_batches")),
        st.tuples(st.just("rebatch"), st.integers(1, 17)),
        st.tuples(st.just("concatenate"), st.integers(0, 30)),
        st.tuples(st.just("interleave"), st.integers(0, 30)),
    ),
    max_size=4,
)


def chain(source, steps, size):
    ds, expected = Dataset.of(source), list(range(source.num_rows()))
    for step in steps:
        if step[0] == "shuffle":
            ds = ds.shuffle(seed=step[1], window=step[2])
        elif step[0] == "map":
            ds, expected = ds.map(lambda x: x + 1000), [v + 1000 for v in expected]
        elif step[0] == "map_batches":
            ds, expected = ds.map_batches(lambda x: x * 2), [v * 2 for v in expected]
        elif step[0] == "rebatch":
            ds = ds.batch(step[1]).unbatch()
        else:
            other = Dataset.of(NumberRows(step[1]))
            expected += list(range(step[1]))
            ds = ds.concatenate(other) if step[0] == "concatenate" else ds.interleave(other, seed=3)
    return ds.batch(size), expected


def run(ds, *, nbytes, threads):
    """The stream with a budget and a pool of its own."""
    budget = Budget(nbytes)
    context = Context(budget=budget, pool=Pool(threads), slabs=SlabPool(budget), events=Events())
    node = rewrite(ds.node)
    stream = Run(context, lambda: Builder(context).build(node, None, (0,)), lambda: None)
    found = elements(StreamIterator(stream, None, lambda state, done: {}, 0))
    assert budget.used == 0
    return found


@settings(max_examples=60, deadline=None)
@given(SOURCES, STEPS, st.integers(1, 33), st.randoms(use_true_random=False))
def test_any_plan_under_any_budget(source, steps, size, rnd: random.Random):
    ds, expected = chain(source, steps, size)
    runs = [run(ds, nbytes=rnd.choice([40_000, 200_000, 10**9]), threads=threads) for threads in (1, rnd.randint(2, 5))]
    assert runs[0] == runs[1]
    assert sorted(v for batch in runs[0] for v in batch) == sorted(expected)
    assert all(len(batch) == size for batch in runs[0][:-1])
