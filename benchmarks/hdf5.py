"""HDF5 of 40 numbers and a label -> shuffled batches of 1,024 x 40 float32.

Covers: penstock, tf.data over an h5py generator, the h5py loop alone.
Does not cover: compressed chunks, pictures.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.child import Again, Build
from benchmarks.rows import BATCH, BLOCK, cut, race_table, tf_generator


def penstock(path: str) -> Build:
    """The quick start, repeated."""
    import h5py  # noqa: F401

    import penstock as ps

    return lambda: ps.read_hdf5(f"{path}/table.h5", x="x", y="y").shuffle(seed=1).batch(BATCH, drop_last=True).repeat()


def _loop(path: str) -> Any:
    """Blocks of rows in a random order, each permuted."""
    import h5py

    rng = np.random.default_rng(1)

    def batches() -> Iterator[Any]:
        with h5py.File(f"{path}/table.h5") as file:
            x, y = file["x"], file["y"]
            for block in rng.permutation(len(x) // BLOCK):
                rows = slice(block * BLOCK, (block + 1) * BLOCK)
                yield from cut(x[rows], y[rows], rng)

    return batches


def tf_data(path: str) -> Build:
    """tf.data has no HDF5 reader: the loop as its generator."""
    import h5py  # noqa: F401
    import tensorflow as tf

    return lambda: tf_generator(tf, _loop(path)).repeat()


def h5py(path: str) -> Build:
    """The loop, nothing else."""
    loop = _loop(path)
    return lambda: Again(loop)


CONTESTANTS = {"hdf5": {"penstock": penstock, "tf.data h5py generator": tf_data, "h5py loop": h5py}}


def run(options: Any) -> None:
    """Race, judge, write."""
    from benchmarks import data, report

    where = report.machine()
    path = data.hdf5(4 if options.quick else 60)
    names = list(CONTESTANTS["hdf5"])
    scores = race_table(__name__, "hdf5", path, names, options)
    verdicts = [
        report.at_least(scores, "penstock", names[1:2], 5, "a tf.data generator over h5py"),
        report.no_more_memory(scores, "penstock", names[1:]),
    ]
    about = (
        "One HDF5 file, 2,949,120 rows of 40 float32 numbers and an integer label in chunks of 4,096 rows, not "
        "compressed; shuffled batches of 1,024 rows, x (1024, 40) float32 and y; warm page cache."
    )
    report.write_race("hdf5", "HDF5 to batches", about, "rows", scores, verdicts, where, quick=options.quick)
