"""A rank of a job that may be killed at any time: `fit` with a checkpoint, and on disk which rows each step took.

`torchrun ... -m tests.integration.noted_job FOLDER`; `rows_once` reads afterwards what counts.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from tests.integration.ray_job import Noted

ROWS, WHOLE, PAUSE_S = int(os.environ.get("NOTED_ROWS", "1201")), 8, float(os.environ.get("NOTED_PAUSE_S", "0.02"))


def main(folder: Path) -> None:
    os.environ["KERAS_BACKEND"] = "torch"
    from penstock.distribute.join import join

    world = join("torch")
    (folder / f"pid-{world.rank}").write_text(str(os.getpid()))
    start = ":".join(os.environ[name] for name in ("MASTER_PORT", "WORLD_SIZE"))  # a port for each start
    import keras
    import torch

    import penstock as ps

    torch.set_num_threads(1)
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
    last: list[int] = []
    rows = ps.from_tensor_slices((x, (x.sum(1) > 0).astype(np.int64), np.arange(ROWS)))
    ds = Noted(rows.shuffle(seed=3).batch(WHOLE // world.size), last)
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    class Notes(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            step = int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))
            with (folder / f"seen-{world.rank}.jsonl").open("a") as file:
                file.write(json.dumps([step, start, time.time(), last]) + "\n")
            last.clear()
            time.sleep(PAUSE_S)

    ps.fit(model, ds, callbacks=[Notes()], checkpoint=folder / "saved", checkpoint_steps=3, resume=True)
    (folder / f"done-{world.rank}").touch()


def noted(folder: Path) -> list[tuple[int, str, float, list[int]]]:
    """All that was noted, of all ranks; a last line may be torn where a rank was killed."""
    found = []
    for path in folder.glob("seen-*.jsonl"):
        for line in path.read_text().split("\n"):
            try:
                found.append(tuple(json.loads(line)))
            except json.JSONDecodeError:
                continue
    return found


def rows_once(folder: Path) -> tuple[Counter[int], int]:
    """Rows of each step as it was taken last, and how many steps were taken again."""
    lines = noted(folder)
    latest: dict[int, tuple[float, str]] = {}
    for step, start, when_s, _ in lines:
        latest[step] = max(latest.get(step, (0.0, "")), (when_s, start))
    kept = {step: start for step, (_, start) in latest.items()}
    rows = Counter(row for step, start, _, some in lines if kept[step] == start for row in some)
    return rows, len({(step, start) for step, start, *_ in lines}) - len(kept)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
