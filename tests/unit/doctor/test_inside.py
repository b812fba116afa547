"""The hooks inside of a script: what they read, and that they keep nothing alive."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from penstock.doctor.run import inject


@pytest.fixture
def holders(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(inject.__file__).parent))
    from penstock_inside import holders

    monkeypatch.setattr(holders, "is_users", lambda name: name == __file__)
    return holders


class Thing:
    def __init__(self):
        self.items = list(range(100_000))


@pytest.fixture
def no_collector():
    gc.disable()
    yield
    gc.enable()


def test_the_walk_keeps_no_object_alive(holders, no_collector):
    names, alive = walk_and_release(holders)
    assert "thing.items" in names
    assert not alive


def walk_and_release(holders):
    thing = Thing()
    reference = weakref.ref(thing)
    names = [item["name"] for item in holders.NameWalk().run()]
    thing = None
    return names, reference() is not None


def test_locals_of_a_function_are_unchanged_by_the_walk(holders):
    kept, number = [1] * 1000, 5
    holders.NameWalk().run()
    assert (len(kept), number) == (1000, 5)


def test_a_function_that_asks_for_its_locals_keeps_them(holders):
    kept = [1] * 1000
    mine = locals()
    holders.NameWalk().run()
    assert mine["kept"] is kept


def test_a_container_that_contains_itself_is_weighed(holders):
    loop: list[object] = [np.zeros(1000)]
    loop.append(loop)
    nbytes, _ = holders.weigh(loop)
    assert nbytes > 8000


def test_views_of_one_storage_are_not_counted_in_full(holders):
    torch = pytest.importorskip("torch")
    rows = list(torch.zeros(100, 1000))
    nbytes, _ = holders.weigh(rows)
    assert nbytes < 2 * 100 * 4000


def test_the_length_of_a_graph_is_counted(holders):
    torch = pytest.importorskip("torch")
    total = torch.ones((), requires_grad=True)
    for _ in range(50):
        total = total * 0.9
    assert 50 <= holders.graph_length(total) <= 52


def test_stacks_are_told_with_the_main_thread_last(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(inject.__file__).parent))
    from penstock_inside.start import all_stacks

    found = all_stacks(sys._getframe())
    file, _, function = found[-1][0]
    assert (file, function) == (__file__, "test_stacks_are_told_with_the_main_thread_last")


def test_steps_of_jax_are_counted_without_optax(monkeypatch):
    jax = pytest.importorskip("jax")
    monkeypatch.syspath_prepend(str(Path(inject.__file__).parent))
    from penstock_inside import board as slots
    from penstock_inside.libraries.jax import TABLE

    for name in ("jit", "grad", "value_and_grad"):
        monkeypatch.setattr(jax, name, getattr(jax, name))  # put back after the test
    board = SimpleNamespace(page=[0] * len(slots.SLOTS))
    TABLE["jax"](SimpleNamespace(board=board), jax)

    @jax.jit
    def step(weight, x):
        return weight - 0.1 * jax.grad(lambda w: (w * x) ** 2)(weight)

    weight = 1.0
    for _ in range(4):
        weight = step(weight, 2.0)
        jax.jit(lambda x: x + 1)(weight)
    assert board.page[slots.STEP] == 4
    assert step.__name__ == "step"
    assert step.lower(1.0, 2.0) is not None
    jax.grad(lambda w: w**2)(1.0)
    assert board.page[slots.STEP] == 5


def test_looking_does_not_run_the_collector(monkeypatch):
    """A walk that made many objects would collect cycles before the probe can tell what they held."""
    monkeypatch.syspath_prepend(str(Path(inject.__file__).parent))
    from penstock_inside.start import without_collecting

    collections: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        collections.append(phase)

    def tell(number: int, frame: object) -> None:
        kept = [[n] for n in range(100_000)]
        assert len(kept) == 100_000

    gc.callbacks.append(note)
    try:
        tell(0, None)
        assert collections, "so many objects run the collector"
        collections.clear()
        without_collecting(tell)(0, None)
        assert not collections
        assert gc.isenabled()
        gc.disable()
        without_collecting(tell)(0, None)
        assert not gc.isenabled()
    finally:
        gc.callbacks.remove(note)
        gc.enable()
