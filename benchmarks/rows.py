"""Pieces that table contestants share: shuffled blocks cut into batches, and the race over a table.

Covers: the hand-written shuffle of peers that have none, running and judging a race.
Does not cover: reading any format (tables_csv.py, tables_parquet.py, tfrecord.py, hdf5.py).
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from benchmarks.harness import Options, Score, Window

BATCH, FEATURES = 1024, 40
BLOCK = 48 * BATCH
"""Rows that peers without a shuffle of their own hold and permute: 49,152, as much as a usual shuffle buffer."""


TF_PER_BLOCK = 16
TF_BLOCK = TF_PER_BLOCK * BATCH
"""The same in tf.data's block forms. Smaller, in their favour: larger blocks come in bursts and fill their memory."""


def files_of(path: str, suffix: str, rng: np.random.Generator | None = None) -> list[str]:
    """The files of a table, in a new order each time if `rng` is given."""
    found = sorted(glob.glob(f"{path}/*.{suffix}"))
    return found if rng is None else [found[i] for i in rng.permutation(len(found))]


def cut(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Permute a block and give it out in whole batches."""
    order = rng.permutation(len(x))
    for start in range(0, len(order) - BATCH + 1, BATCH):
        rows = order[start : start + BATCH]
        yield x[rows], y[rows]


def tf_rows(tf: Any, x: Any, y: Any) -> Any:
    """A block of rows in TensorFlow, permuted and cut into batches, as one element of TF_PER_BLOCK batches."""
    order = tf.random.shuffle(tf.range(TF_BLOCK))
    shuffled = tf.gather(x, order), tf.gather(y, order)
    return tf.reshape(shuffled[0], (TF_PER_BLOCK, BATCH, FEATURES)), tf.reshape(shuffled[1], (TF_PER_BLOCK, BATCH))


def tf_generator(tf: Any, batches: Any) -> Any:
    """A tf.data dataset over a Python generator of batches."""
    signature = (tf.TensorSpec((BATCH, FEATURES), tf.float32), tf.TensorSpec((BATCH,), tf.int64))
    return tf.data.Dataset.from_generator(batches, output_signature=signature).prefetch(tf.data.AUTOTUNE)


def race_table(module: str, group: str, path: Path, names: Sequence[str], options: Options) -> list[Score]:
    """All rounds over a table of 40 numbers and a label."""
    from benchmarks.harness import Race, race

    times: Window = {"warm_s": 0.3, "window_s": 0.7} if options.quick else {"warm_s": 1.0, "window_s": 2.5}
    plan = Race(module, group, str(path), names, (BATCH, FEATURES), "float32", options.turns(4), **times)
    return race(plan)
