"""What each rank of test_ranks.py does: trains a small Keras model and writes what it saw.

`python -m tests.integration.ranks_job OUT CASE`, alone or as one of several ranks; a number as the case is the steps to
take from the checkpoint that is in OUT.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 53
MANY_ROWS = 401
WIDTH = 6


def main(out: Path, case: str) -> None:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    from penstock.core.world import find_world
    from penstock.distribute.join import join

    world = join(os.environ["KERAS_BACKEND"])
    import keras

    import penstock as ps
    from penstock.core.events import events
    from penstock.guard.keras.step import TrainStep

    if os.environ["KERAS_BACKEND"] == "torch":
        import torch

        torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
    y = (x.sum(1) > 0).astype(np.int64)
    seen: list[int] = []

    def note(batch: tuple) -> tuple:
        seen.extend(int(n) for n in batch[2])
        return batch[0], batch[1]

    whole = 12
    ds = ps.from_tensor_slices((x, y, np.arange(ROWS)))
    if case == "filter":  # ranks keep different numbers of rows
        ds = ds.filter(lambda x, y, n: n % 4 != 1).map(damaged, on_error="skip")
    ds = ds.batch(whole // world.size).map(lambda x, y, n: note((x, y, n)))
    keras.utils.set_random_seed(world.rank + 1 if case == "filter" else 1)
    model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)])
    model.compile(
        keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    if case == "oom":
        _fail_once(TrainStep, world.rank)
    history = ps.fit(model, ds, epochs=3, validation_data=ds, checkpoint=out / "saved", checkpoint_steps=2)
    micros = [e.values["micro"] for e in events.recent if e.kind == "guard.smaller"]
    weights = [float(np.asarray(keras.ops.convert_to_numpy(w)).sum()) for w in model.weights]
    found = {"seen": seen, "history": history.history, "weights": weights, "micros": micros, "world": str(find_world())}
    (out / f"rank-{world.rank}.json").write_text(json.dumps(found))


def damaged(x: Any, y: Any, n: Any) -> Any:
    if n % 7 == 2:
        raise ValueError("damaged")
    return x, y, n


def grow(out: Path, steps: int) -> None:
    """Train on from the checkpoint that is there, by these ranks or by others, and stop after so many steps."""
    from penstock.distribute.join import join

    world = join(os.environ["KERAS_BACKEND"])
    import keras

    import penstock as ps

    x = np.random.default_rng(0).normal(size=(MANY_ROWS, WIDTH)).astype(np.float32)
    ds = ps.from_tensor_slices((x, (x.sum(1) > 0).astype(np.int64), np.arange(MANY_ROWS)))
    ds = Noted(ds.shuffle(seed=3).batch(12 // world.size), [])
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    class Stop(keras.callbacks.Callback):
        left = steps

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGTERM)

    try:
        ps.fit(model, ds, epochs=2, callbacks=[Stop()], checkpoint=out / "saved", resume=True)
    except SystemExit as stopped:
        assert stopped.code == 143, stopped
    (out / f"rank-{world.rank}.json").write_text(json.dumps({"seen": ds.seen}))


class Noted:
    """Batches without their row numbers, which are kept as they are taken: reading ahead does not count."""

    def __init__(self, ds: Any, seen: list[int]) -> None:
        self.ds, self.seen = ds, seen

    def __iter__(self) -> Iterator[Any]:
        return _Noting(iter(self.ds), self.seen)

    def resume(self, position: Any) -> Noted:
        return Noted(self.ds.resume(position), self.seen)


class _Noting(Iterator[Any]):
    def __init__(self, batches: Any, seen: list[int]) -> None:
        self._batches, self._seen = batches, seen

    def __next__(self) -> Any:
        x, y, numbers = next(self._batches)
        self._seen.extend(numbers.tolist())
        return x, y

    @property
    def position(self) -> Any:
        return self._batches.position


def _fail_once(step: type, rank: int) -> None:
    """The second rank runs out of memory in the backward pass of one step."""
    part, count = step.part, [0]

    def failing(self: object, data: object) -> None:
        count[0] += 1
        if rank == 1 and count[0] == 4:
            raise MemoryError("injected")
        part(self, data)

    step.part = failing


if __name__ == "__main__":
    if sys.argv[2].isdigit():
        grow(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        main(Path(sys.argv[1]), sys.argv[2])
