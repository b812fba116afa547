"""Parquet of 40 numbers and a label -> shuffled batches of 1,024 x 40 float32.

Covers: penstock, tf.data over a PyArrow generator, a hand-written PyArrow loop, Polars.
Does not cover: nested columns, filters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.child import Again, Build
from benchmarks.rows import BATCH, BLOCK, FEATURES, cut, files_of, race_table, tf_generator

NAMES = [f"f{i}" for i in range(FEATURES)]


def penstock(path: str) -> Build:
    """The quick start, repeated."""
    import penstock as ps

    return lambda: (
        ps.read_parquet(f"{path}/*.parquet", label="label").shuffle(seed=1).batch(BATCH, drop_last=True).repeat()
    )


def _loop(path: str) -> Any:
    """The hand-written loop: blocks, row-major in one call, permuted."""
    import pyarrow.parquet as pq

    rng = np.random.default_rng(1)

    def batches() -> Iterator[Any]:
        for file in files_of(path, "parquet", rng):
            with pq.ParquetFile(file, pre_buffer=True) as opened:
                for block in opened.iter_batches(BLOCK):
                    x = block.select(NAMES).to_tensor(row_major=True).to_numpy()
                    yield from cut(x, block["label"].to_numpy(), rng)

    return batches


def tf_data(path: str) -> Build:
    """tf.data has no Parquet reader: the loop above as its generator."""
    import pyarrow.parquet  # noqa: F401
    import tensorflow as tf

    return lambda: tf_generator(tf, _loop(path)).repeat()


def pyarrow(path: str) -> Build:
    """The loop, nothing else."""
    loop = _loop(path)
    return lambda: Again(loop)


def polars(path: str) -> Build:
    """The streaming engine's batches, permuted."""
    import polars as pl

    rng = np.random.default_rng(1)

    def batches() -> Iterator[Any]:
        scan = pl.scan_parquet(files_of(path, "parquet", rng))
        for frame in scan.collect_batches(chunk_size=BLOCK, maintain_order=False, lazy=True):
            yield from cut(frame.select(NAMES).to_numpy(), frame["label"].to_numpy(), rng)

    return lambda: Again(batches)


CONTESTANTS = {
    "parquet": {
        "penstock": penstock,
        "tf.data PyArrow generator": tf_data,
        "PyArrow loop": pyarrow,
        "Polars streaming": polars,
    }
}


def run(options: Any) -> None:
    """Race, judge, write."""
    from benchmarks import data, report

    where = report.machine()
    path = data.parquet(2, 2) if options.quick else data.parquet(8, 10)
    names = list(CONTESTANTS["parquet"])
    scores = race_table(__name__, "parquet", path, names, options)
    verdicts = [
        report.at_least(scores, "penstock", ["tf.data PyArrow generator"], 3, "tf.data"),
        report.at_least(scores, "penstock", ["PyArrow loop"], 1.3, "a hand-written PyArrow loop"),
        report.no_more_memory(scores, "penstock", names[1:]),
    ]
    about = (
        "8 Parquet files, 3,932,160 rows of 40 float32 numbers and an integer label, row groups of 49,152 rows (8 MB); "
        "shuffled batches of 1,024 rows, x (1024, 40) float32 and y; warm page cache."
    )
    report.write_race(
        "tables_parquet", "Parquet to batches", about, "rows", scores, verdicts, where, quick=options.quick
    )
