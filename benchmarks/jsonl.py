"""JSON lines of 40 numbers and a label -> shuffled batches of 1,024 x 40 float32.

Covers: penstock, tf.data as one writes it (there is no JSON reader in it), pandas, PyArrow and Polars blocks.
Does not cover: compressed files, nested fields, text columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.child import Again, Build
from benchmarks.rows import BATCH, BLOCK, FEATURES, cut, files_of, race_table, tf_generator

NAMES = [f"f{i}" for i in range(FEATURES)]
_PIECE_NBYTES = 8 << 20


def jsonl(files: int, chunks: int) -> Path:
    """JSON lines files of `chunks` chunks each (about 42 MB a chunk)."""
    from benchmarks import data

    def make(folder: Path) -> None:
        x, y = data.chunk()
        lines = [
            json.dumps({**dict(zip(NAMES, row)), "label": label})
            for row, label in zip(np.round(x.astype(float), 7).tolist(), y.tolist())
        ]
        text = ("\n".join(lines) + "\n").encode()
        for number in range(files):
            with open(folder / f"part-{number:03d}.jsonl", "wb") as file:
                for _ in range(chunks):
                    file.write(text)

    return data.made(f"jsonl-{files}x{chunks}", make)


def penstock(path: str) -> Build:
    """The quick start, repeated."""
    import pyarrow.json  # noqa: F401

    import penstock as ps

    return lambda: ps.read_json(f"{path}/*.jsonl", label="label").shuffle(seed=1).batch(BATCH, drop_last=True).repeat()


def _blocks(path: str, parse: Callable[[bytes], tuple[np.ndarray, np.ndarray]]) -> Callable[[], Iterator[Any]]:
    """Files in a random order, read in pieces of whole lines; parsed rows are collected, permuted and cut."""
    rng = np.random.default_rng(1)

    def batches() -> Iterator[Any]:
        held: list[tuple[np.ndarray, np.ndarray]] = []
        for name in files_of(path, "jsonl", rng):
            with open(name, "rb") as file:
                while piece := file.read(_PIECE_NBYTES):
                    held.append(parse(piece + file.readline()))
                    if sum(len(y) for _, y in held) >= BLOCK:
                        x, y = (np.concatenate(part) for part in zip(*held))
                        yield from cut(x, y, rng)
                        held = []

    return batches


def _with_loads(loads: Callable[[Any], Any]) -> Callable[[bytes], tuple[np.ndarray, np.ndarray]]:
    def parse(piece: bytes) -> tuple[np.ndarray, np.ndarray]:
        rows = [list(loads(line).values()) for line in piece.splitlines()]
        table = np.array(rows, np.float32)
        return table[:, :FEATURES], table[:, FEATURES].astype(np.int64)

    return parse


def _with_arrow() -> Callable[[bytes], tuple[np.ndarray, np.ndarray]]:
    import pyarrow as pa
    import pyarrow.json as pj

    schema = pa.schema([*((name, pa.float32()) for name in NAMES), ("label", pa.int64())])
    options = pj.ParseOptions(explicit_schema=schema)

    def parse(piece: bytes) -> tuple[np.ndarray, np.ndarray]:
        found = pj.read_json(pa.BufferReader(piece), pj.ReadOptions(use_threads=True), options).combine_chunks()
        x = found.select(NAMES).to_batches()[0].to_tensor(row_major=True).to_numpy()
        return x, found["label"].to_numpy()

    return parse


def tf_lines(path: str) -> Build:
    """tf.data's own lines, each parsed by json.loads in a py_function: what most guides show."""
    import tensorflow as tf

    def parse(line: Any) -> tuple[Any, Any]:
        row = list(json.loads(line.numpy()).values())
        return np.array(row[:FEATURES], np.float32), np.int64(row[FEATURES])

    def shaped(line: Any) -> tuple[Any, Any]:
        x, y = tf.py_function(parse, [line], (tf.float32, tf.int64))
        return tf.ensure_shape(x, (FEATURES,)), tf.ensure_shape(y, ())

    def build() -> Any:
        files = tf.data.Dataset.list_files(f"{path}/*.jsonl", shuffle=True).repeat()
        lines = files.interleave(tf.data.TextLineDataset, cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE)
        parsed = lines.shuffle(BLOCK // 8).map(shaped, num_parallel_calls=tf.data.AUTOTUNE)
        return parsed.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

    return build


def tf_orjson(path: str) -> Build:
    """A generator of batches behind tf.data, each line by orjson."""
    import orjson
    import tensorflow as tf

    return lambda: tf_generator(tf, _blocks(path, _with_loads(orjson.loads))).repeat()


def tf_arrow(path: str) -> Build:
    """A generator of batches behind tf.data, blocks by PyArrow's parser: the best hand-written form."""
    import tensorflow as tf

    parse = _with_arrow()
    return lambda: tf_generator(tf, _blocks(path, parse)).repeat()


def arrow(path: str) -> Build:
    """The PyArrow loop alone."""
    loop = _blocks(path, _with_arrow())
    return lambda: Again(loop)


def pandas(path: str) -> Build:
    """pandas in chunks."""
    import pandas as pd

    rng = np.random.default_rng(1)

    def batches() -> Iterator[Any]:
        for name in files_of(path, "jsonl", rng):
            with pd.read_json(name, lines=True, chunksize=BLOCK) as chunks:
                for chunk in chunks:
                    yield from cut(chunk[NAMES].to_numpy(np.float32), chunk["label"].to_numpy(np.int64), rng)

    return lambda: Again(batches)


CONTESTANTS = {
    "jsonl": {
        "penstock": penstock,
        "tf.data lines, json.loads": tf_lines,
        "tf.data orjson generator": tf_orjson,
        "tf.data PyArrow generator": tf_arrow,
        "PyArrow loop": arrow,
        "pandas chunks": pandas,
    }
}


def run(options: Any) -> None:
    """Race, judge, write."""
    from benchmarks import report

    where = report.machine()
    path = jsonl(2, 1) if options.quick else jsonl(8, 2)
    names = list(CONTESTANTS["jsonl"])
    scores = race_table(__name__, "jsonl", path, names, options)
    verdicts = [
        report.at_least(scores, "penstock", names[1:2], 3, "tf.data as guides show it"),
        report.at_least(scores, "penstock", names[2:4], 3, "tf.data's best hand-written generator"),
        report.no_more_memory(scores, "penstock", names[1:]),
    ]
    about = (
        "8 files of JSON lines, 786,432 objects of 40 numbers and an integer (about 850 bytes a line); shuffled "
        "batches of 1,024 rows, x (1024, 40) float32 and y; warm page cache."
    )
    report.write_race("jsonl", "JSON lines to batches", about, "rows", scores, verdicts, where, quick=options.quick)
