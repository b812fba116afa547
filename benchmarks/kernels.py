"""Each kernel compiled ahead against its last Numba version: one process, both warm, by turns.

Covers: processor time of the kernels for text, pictures and rows, without a loader around them.
Does not cover: loaders (the other benchmarks), first passes of fresh processes (first_pass.py).

The Numba versions are taken from the history (commit LAST_NUMBA), so they need a clone and `pip install numba==0.68.1`.
Compilers differ, so each has a page of its own: kernels.md for GCC's, and kernels_clang.md for clang's, which makes
the wheels in the form of Zig (`CC=clang python native/build.py --out F`, then PENSTOCK_KERNELS_PATH=F).
"""

from __future__ import annotations

import io
import re
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

LAST_NUMBA = "ff3bb6f"
"""The last commit whose kernels are Numba's."""

NUMBA_ROOMS = ("core", "memory", "sources", "engine/gather_kernel.py", "write/example_kernel.py")
"""What of it is needed to run them."""

ROUNDS, SLICE_S = 21, 0.03

Pair = tuple[Callable[[], Any], Callable[[], Any]]
"""The same work by the kernel of today and by the Numba version."""


def old_kernels() -> None:
    """Let `import oldpenstock` find the Numba kernels of LAST_NUMBA, under a name of their own; compiled once."""
    from benchmarks import data

    def make(folder: Path) -> None:
        wanted = [f"penstock/{room}" for room in NUMBA_ROOMS]
        command = ["git", "archive", LAST_NUMBA, *wanted]
        packed = subprocess.run(command, cwd=data.HOME.parent, capture_output=True, check=True)
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
            archive.extractall(folder, filter="data")
        (folder / "penstock").rename(folder / "oldpenstock")
        for path in (folder / "oldpenstock").rglob("*.py"):
            path.write_text(re.sub(r"\b(from|import) penstock\b", r"\1 oldpenstock", path.read_text()))

    sys.path.insert(0, str(data.made(f"numba-{LAST_NUMBA}", make)))


def csv_pair(words: Callable[[np.random.Generator, int], list[str]], dtype: type, columns: int = 40) -> Pair:
    """Lines of `columns` numbers, 160,000 in all, into a matrix."""
    from oldpenstock.sources.csv_cells import TABLE
    from oldpenstock.sources.csv_numba import compiled

    from penstock.native.csv import count_byte, read_rows
    from penstock.sources.csv.numbers import MATRIX, Layout, room_for

    rows = 160_000 // columns
    cells = words(np.random.default_rng(0), rows * columns)
    text = np.frombuffer(
        "".join(",".join(cells[columns * r : columns * (r + 1)]) + "\n" for r in range(rows)).encode(), np.uint8
    )
    layout = Layout((MATRIX,) * columns, tuple(range(columns)), ",", ("", "NA"), dtype)
    out, listed, plan = room_for(rows + 1, layout), np.empty((4096, 4), np.int64), layout.plan()
    count, run = compiled(np.dtype(dtype))
    nulls = np.frombuffer(b"NA", np.uint8), np.array([0, 0, 2], np.int64)

    def old() -> Any:
        assert count(text) == rows
        done = run(text, ord(","), plan, nulls, (out.matrix, out.floats, out.integers), listed, TABLE)
        assert done == (rows, 0)

    def new() -> Any:
        assert count_byte(text, 10) == rows
        assert read_rows(text, plan, (b"", b"NA"), ord(","), out, listed).rows == rows

    return new, old


def json_pair() -> Pair:
    """Objects of 20 short numbers and one integer."""
    from oldpenstock.sources.json_numba import compiled

    from penstock.native.json import read_rows
    from penstock.sources.csv.numbers import INTEGER, MATRIX, Layout, room_for

    rng, rows = np.random.default_rng(0), 4000
    numbers = rng.standard_normal((rows, 20)).astype(np.float32)
    lines = [
        "{" + ", ".join(f'"f{k}": {v}' for k, v in enumerate(row)) + f', "y": {r}}}\n' for r, row in enumerate(numbers)
    ]
    text = np.frombuffer("".join(lines).encode(), np.uint8)
    keys = [f'"f{k}":'.encode() for k in range(20)] + [b'"y":']
    ends = np.cumsum([0, *map(len, keys)]).astype(np.int64)
    layout = Layout((MATRIX,) * 20 + (INTEGER,), (*range(20), 0), ",", (), np.float32)
    plan, out, run = (
        np.array([layout.kinds, layout.slots], np.int64),
        room_for(rows + 1, layout),
        compiled(np.dtype("f4")),
    )
    joined = np.frombuffer(b"".join(keys), np.uint8)

    def old() -> Any:
        assert run(text, (joined, ends), plan, (out.matrix, out.floats, out.integers)) == rows

    def new() -> Any:
        assert read_rows(text, joined.tobytes(), ends[1:], plan, out) == (0, rows)

    return new, old


def gather_pair(row: tuple[int, ...], dtype: type = np.float32, rows: int = 40_000) -> Pair:
    """A batch of rows from 8 blocks in random order."""
    from oldpenstock.engine import gather_kernel as numba_gather

    from penstock.native import gather

    rng = np.random.default_rng(0)
    blocks: list[np.ndarray] = [rng.integers(0, 99, (rows // 8, *row)).astype(dtype) for _ in range(8)]
    ends = np.cumsum([len(b) for b in blocks])
    order = rng.permutation(rows)[: rows // 4]
    out: np.ndarray = np.empty((len(order), *row), dtype)

    def old() -> Any:
        which, place = np.empty_like(order), np.empty_like(order)
        numba_gather.locate(order, ends, which, place)
        bases = np.array([b.ctypes.data for b in blocks], np.int64)
        numba_gather.copy_rows(bases, which, place, out.nbytes // len(out), out.ctypes.data)

    def new() -> Any:
        which, place = gather.locate(order, ends)
        gather.copy_rows(blocks, which, place, out)

    return new, old


def matrix_pair(dtypes: tuple[type, ...]) -> Pair:
    """40 columns of 49,152 rows to rows; float32, or eight bytes as they are."""
    from oldpenstock.sources import matrix_kernel as numba_matrix

    from penstock.native import matrix

    kinds = {np.float32: 0, np.float64: 1, np.int32: 2, np.int64: 3}
    rng, shape = np.random.default_rng(0), (49_152, 40)
    columns: list[np.ndarray] = [rng.integers(0, 99, shape[0]).astype(dtypes[k % len(dtypes)]) for k in range(40)]
    wide = dtypes == (np.int64,)
    out = np.empty(shape, np.int64 if wide else np.float32)
    sorts = [kinds[c.dtype.type] for c in columns]

    def old() -> Any:
        addresses = np.array([c.ctypes.data for c in columns], np.int64)
        if wide:
            numba_matrix.copy_u64(addresses, shape, out.ctypes.data)
        else:
            numba_matrix.to_f32(addresses, np.array(sorts, np.int64), shape, out.ctypes.data)

    def new() -> Any:
        places = [c.ctypes.data for c in columns]
        if wide:
            matrix.copy_u64(places, out)
        else:
            matrix.to_f32(places, sorts, out)

    return new, old


def jpeg_pair(fast: bool, quality: int = 85, layout: int = 0x221111) -> Pair:
    """Pictures of 375 x 500 pixels; chroma at half width and height unless `layout` says otherwise."""
    import cv2
    from oldpenstock.sources.jpeg import decoder

    from benchmarks.data import photo
    from penstock.native import jpeg

    settings = (cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, layout)
    raw = [np.frombuffer(photo(seed), np.uint8) for seed in range(4)]
    decoded = [np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR)) for data in raw]
    files = [cv2.imencode(".jpg", pixels, settings)[1].tobytes() for pixels in decoded]
    kept: dict[str, np.ndarray] = {}

    def room(purpose: str, nbytes: int) -> np.ndarray:
        if len(kept.get(purpose, b"")) < nbytes:
            kept[purpose] = np.zeros(nbytes, np.uint8)
        return kept[purpose][:nbytes]

    outs = [np.empty(pixels.size, np.uint8) for pixels in decoded]

    def old() -> Any:
        for data, out in zip(files, outs):
            text, work = np.frombuffer(data, np.uint8), room("old tables", 8 * decoder.WORK_SIZE).view(np.int64)
            nbytes = decoder.survey(text, work)
            assert decoder.decode(text, work, room("old planes", nbytes), out, fast, False) == decoder.OK

    def new() -> Any:
        for data, out in zip(files, outs):
            assert jpeg.decode(data, "rgb", fast, out, room)

    return new, old


def short_f32(rng: np.random.Generator, count: int) -> list[str]:
    return [str(v) for v in rng.standard_normal(count).astype(np.float32)]


def six_places(rng: np.random.Generator, count: int) -> list[str]:
    return [f"{v:.6f}" for v in rng.standard_normal(count)]


def full_f64(rng: np.random.Generator, count: int) -> list[str]:
    return [repr(v) for v in rng.standard_normal(count).tolist()]


def whole(rng: np.random.Generator, count: int) -> list[str]:
    return [str(v) for v in rng.integers(0, 10 ** rng.integers(1, 8, count))]


def pairs() -> dict[str, Callable[[], Pair]]:
    """What is measured, by name."""
    from benchmarks import kernels_records

    return {
        "CSV, 40 floats as `%.6f`, to float32": lambda: csv_pair(six_places, np.float32),
        "CSV, 40 floats as float32 text, to float32": lambda: csv_pair(short_f32, np.float32),
        "CSV, 40 floats in full, to float64": lambda: csv_pair(full_f64, np.float64),
        "CSV, 40 integers, to float32": lambda: csv_pair(whole, np.float32),
        "CSV, 3 floats as `%.6f`, to float64": lambda: csv_pair(six_places, np.float64, 3),
        "JSON lines, 20 floats and an integer": json_pair,
        "gather, rows of 168 bytes": lambda: gather_pair((42,)),
        "gather, rows of 4 bytes": lambda: gather_pair((), rows=400_000),
        "gather, rows of 12 KB": lambda: gather_pair((64, 64, 3), np.uint8, 8000),
        "columns to rows, float32": lambda: matrix_pair((np.float32,)),
        "columns to rows, mixed to float32": lambda: matrix_pair((np.float32, np.float64, np.int32, np.int64)),
        "columns to rows, int64": lambda: matrix_pair((np.int64,)),
        "JPEG, accurate, 4:2:0": lambda: jpeg_pair(False),
        "JPEG, fast, 4:2:0": lambda: jpeg_pair(True),
        "JPEG, accurate, 4:4:4, quality 95": lambda: jpeg_pair(False, 95, 0x111111),
        **kernels_records.pairs(),
    }


def measured(pair: Pair, turns: int) -> tuple[list[float], list[float]]:
    """Milliseconds of processor time a call, of both, slice by slice."""
    new, old = pair
    found: tuple[list[float], list[float]] = [], []
    for work in (old, new):
        work()
    for turn in range(turns):
        for which in (0, 1) if turn % 2 else (1, 0):
            calls, began, until = 0, time.thread_time(), time.perf_counter() + SLICE_S
            while calls == 0 or time.perf_counter() < until:
                pair[which]()
                calls += 1
            found[which].append((time.thread_time() - began) / calls * 1e3)
    return found


def run(options: Any) -> None:
    """Measure, compare, write."""
    from benchmarks import report
    from penstock.native.library import library

    old_kernels()
    from benchmarks.kernels_records import call_cost  # which imports the old kernels

    calls = [1e3 * statistics.median(times) for times in measured(call_cost(), options.turns(ROUNDS))]
    where, rows, data, verdicts = report.machine(), [], {}, []
    for name, make in pairs().items():
        new, old = measured(make(), options.turns(ROUNDS))
        ratios = [b / a for a, b in zip(new, old)]
        middle = statistics.median(ratios)
        data[name] = {"new_ms": new, "numba_ms": old}
        rows.append([
            name, f"{statistics.median(new):.3f}", f"{statistics.median(old):.3f}", f"{middle:.2f}x",
            f"{min(ratios):.2f}-{max(ratios):.2f}",
        ])  # fmt: skip
        verdicts.append(report.Verdict(f"{name}: >= 1x the Numba version", f"{middle:.2f}x", middle >= 1.0))
        print("  ", rows[-1], flush=True)
    about = (
        f"Processor time of a call, each kernel ({library().compiler}, level {library().level}) by turns with its last "
        "Numba version in one process, both warm; medians, and the median of the rounds' own ratios (above 1: the "
        "kernel of today is faster). A call alone (one TFRecord frame of 47 bytes) takes "
        f"{calls[0]:.1f} us through ctypes, {calls[1]:.1f} us through Numba's dispatcher: readers call a kernel once "
        "for some megabytes, so that this is in the numbers below."
    )
    columns = ("kernel", "ms now", "ms Numba", "times as fast", "min-max")
    title = "kernels" if library().compiler.startswith("GCC") else "kernels_clang"
    report.Paper(title, "Kernels compiled ahead against their Numba versions", about, where, columns, rows,
                 verdicts, data, {}, options.quick).write()  # fmt: skip
    plt = report.plotter()
    figure, axis = plt.subplots(figsize=(8, 4.5))
    axis.barh([row[0] for row in rows][::-1], [float(row[3][:-1]) for row in rows][::-1], color="#1f6feb")
    axis.axvline(1.0, color="#333333", lw=1)
    axis.set(xlabel="times as fast as the Numba version (median of ratios)")
    figure.tight_layout()
    report.save(figure, title, options.quick)
