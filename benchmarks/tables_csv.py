"""CSV of 40 numbers and a label -> shuffled batches of 1,024 x 40 float32.

Covers: penstock, tf.data as documented and vectorised by hand, Polars, pandas, PyArrow.
Does not cover: text columns, compressed files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.child import Again, Build
from benchmarks.rows import BATCH, BLOCK, FEATURES, TF_BLOCK, cut, files_of, race_table, tf_rows

NAMES = [f"f{i}" for i in range(FEATURES)]


def penstock(path: str) -> Build:
    """The quick start, repeated."""
    import penstock as ps

    return lambda: ps.read_csv(f"{path}/*.csv", label="label").shuffle(seed=1).batch(BATCH, drop_last=True).repeat()


def tf_documented(path: str) -> Build:
    """make_csv_dataset and the packing of columns that its guide shows."""
    import tensorflow as tf

    def pack(columns: Any, label: Any) -> tuple[Any, Any]:
        return tf.stack(list(columns.values()), axis=-1), label

    def build() -> Any:
        found = tf.data.experimental.make_csv_dataset(
            f"{path}/*.csv", BATCH, label_name="label", num_epochs=None, shuffle=True, num_parallel_reads=2
        )
        return found.map(pack, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    return build


def _tf_lines(tf: Any, path: str) -> Any:
    """Lines of several files at a time, without the heads."""
    files = tf.data.Dataset.list_files(f"{path}/*.csv", shuffle=True).repeat()
    return files.interleave(
        lambda file: tf.data.TextLineDataset(file, buffer_size=4 << 20).skip(1), cycle_length=4, block_length=64,
        num_parallel_calls=tf.data.AUTOTUNE, deterministic=False,
    )  # fmt: skip


def _tf_decode(tf: Any, lines: Any) -> tuple[Any, Any]:
    """Many lines in one call."""
    kinds = [tf.constant(0.0, tf.float32)] * FEATURES + [tf.constant(0, tf.int64)]
    *columns, label = tf.io.decode_csv(lines, kinds)
    return tf.stack(columns, axis=-1), label


def tf_batches(path: str) -> Build:
    """Lines shuffled, then decode_csv on a batch of them at a time."""
    import tensorflow as tf

    def build() -> Any:
        batched = _tf_lines(tf, path).shuffle(BLOCK).batch(BATCH, drop_remainder=True)
        decoded = batched.map(lambda lines: _tf_decode(tf, lines), num_parallel_calls=tf.data.AUTOTUNE)
        return decoded.prefetch(tf.data.AUTOTUNE)

    return build


def tf_blocks(path: str) -> Build:
    """decode_csv on large blocks of lines, each shuffled at once as a tensor."""
    import tensorflow as tf

    def build() -> Any:
        blocks = _tf_lines(tf, path).batch(TF_BLOCK, drop_remainder=True)
        decoded = blocks.map(lambda lines: tf_rows(tf, *_tf_decode(tf, lines)), num_parallel_calls=tf.data.AUTOTUNE)
        return decoded.unbatch().prefetch(tf.data.AUTOTUNE)

    return build


def polars(path: str) -> Build:
    """The streaming engine's batches, permuted."""
    import polars as pl

    rng = np.random.default_rng(1)
    kinds = {**dict.fromkeys(NAMES, pl.Float32), "label": pl.Int64}

    def batches() -> Iterator[Any]:
        scan = pl.scan_csv(files_of(path, "csv", rng), schema=kinds)
        for frame in scan.collect_batches(chunk_size=BLOCK, maintain_order=False, lazy=True):
            yield from cut(frame.select(NAMES).to_numpy(), frame["label"].to_numpy(), rng)

    return lambda: Again(batches)


def pandas(path: str) -> Build:
    """read_csv in chunks, permuted."""
    import pandas as pd

    rng = np.random.default_rng(1)
    kinds = {**dict.fromkeys(NAMES, np.float32), "label": np.int64}

    def batches() -> Iterator[Any]:
        for file in files_of(path, "csv", rng):
            with pd.read_csv(file, dtype=kinds, chunksize=BLOCK) as frames:
                for frame in frames:
                    y = frame.pop("label").to_numpy()
                    yield from cut(np.ascontiguousarray(frame.to_numpy()), y, rng)

    return lambda: Again(batches)


def pyarrow(path: str) -> Build:
    """open_csv in blocks of about as many rows, permuted."""
    import pyarrow as pa
    import pyarrow.csv as pc

    rng = np.random.default_rng(1)
    kinds = pc.ConvertOptions(column_types={**dict.fromkeys(NAMES, pa.float32()), "label": pa.int64()})
    reading = pc.ReadOptions(block_size=21 << 20)

    def batches() -> Iterator[Any]:
        for file in files_of(path, "csv", rng):
            with pc.open_csv(file, read_options=reading, convert_options=kinds) as reader:
                for block in reader:
                    x = block.select(NAMES).to_tensor(row_major=True).to_numpy()
                    yield from cut(x, block["label"].to_numpy(), rng)

    return lambda: Again(batches)


CONTESTANTS = {
    "csv": {
        "penstock": penstock,
        "tf.data make_csv_dataset": tf_documented,
        "tf.data batch, decode_csv": tf_batches,
        "tf.data blocks, decode_csv": tf_blocks,
        "Polars streaming": polars,
        "pandas chunks": pandas,
        "PyArrow open_csv": pyarrow,
    }
}


def run(options: Any) -> None:
    """Race, judge, write."""
    from benchmarks import data, report

    where = report.machine()
    path = data.csv(2, 2) if options.quick else data.csv(8, 5)
    names = list(CONTESTANTS["csv"])
    scores = race_table(__name__, "csv", path, names, options)
    verdicts = [
        report.at_least(scores, "penstock", [n for n in names if n.startswith("tf.data")], 5, "tf.data's best"),
        report.at_least(scores, "penstock", ["Polars streaming"], 2, "Polars"),
        report.no_more_memory(scores, "penstock", [n for n in names[1:] if n != "pandas chunks"]),
    ]
    about = (
        "8 CSV files, 1,966,080 rows of 40 float32 numbers and an integer label; shuffled batches of 1,024 rows, "
        "x (1024, 40) float32 and y; warm page cache."
    )
    report.write_race("tables_csv", "CSV to batches", about, "rows", scores, verdicts, where, quick=options.quick)
