"""Does the shuffle mix data of 0.1 to 8 GB, in every shape of Parquet, and what do exact shuffles of 8 GB cost?

Covers: coverage measured on the rows that really come, for sizes and shapes; `exact=True` in 1 GB of memory; the
external shuffle of `penstock pack --shuffle` in 500 MB beside `sort -R` and DuckDB; a cold disk.
Does not cover: accuracy (shuffle_accuracy.py), speed beside windows of neighbours (shuffle_speed.py), S3
(shuffle_remote.py).

    python -m benchmarks.shuffle_large PART [PART ...] [--gb 8] [--limit 1GB] [--folder .bench/shuffle_large]

Parts: sizes, shapes, exact, external, cold, report. Each adds its numbers to results/shuffle_large.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import machine
from benchmarks.shuffle_data import place
from penstock.core.sizes import parse_size, size
from penstock.engine.mixing import BATCH, STRETCHES, uniform_stretches
from penstock.memory.jail import run_limited

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 20
CHUNK = 50_000
PEER_MOST_S = 600
WAYS = ("penstock pack --shuffle", "DuckDB ORDER BY random()", "sort -R")
FIRST_ROW = 100_000_000
"""So that all row numbers of text have nine digits."""


def table(first: int, rows: int, columns: int, nested: bool = False) -> Any:
    """Rows with their number, sorted by it, and random numbers."""
    import pyarrow as pa

    random = np.random.default_rng(first)
    found: dict[str, Any] = {"row": np.arange(first, first + rows)}
    if nested:
        values = pa.array(random.normal(size=4 * rows))
        lists = pa.ListArray.from_arrays(np.arange(0, 4 * rows + 1, 4, dtype=np.int32), values)
        found["inner"] = pa.StructArray.from_arrays([lists, pa.array(random.normal(size=rows))], ["several", "one"])
        return pa.table(found)
    return pa.table(found | {f"x{i}": random.normal(size=rows).round(5).astype(np.float32) for i in range(columns)})


def csv_file(folder: Path, gb: float) -> Path:
    """A table of text of so many bytes: row numbers, and columns of random numbers from 0.00000 to 9.99999."""
    path = folder / f"{gb:g}.csv"
    if path.exists():
        return path
    half, random, first = path.with_suffix(".half"), np.random.default_rng(0), FIRST_ROW
    text = np.full((CHUNK, 10 + 8 * COLUMNS), ord(","), np.uint8)
    text[:, -1] = ord("\n")
    with open(half, "wb") as out:
        out.write((",".join(["row", *(f"x{i}" for i in range(COLUMNS))]) + "\n").encode())
        while out.tell() < gb * 1e9:
            numbers = np.arange(first, first + CHUNK)
            for digit in range(9):
                text[:, digit] = ord("0") + numbers // 10 ** (8 - digit) % 10
            for column in range(COLUMNS):
                at = 10 + 8 * column
                text[:, at : at + 7] = random.integers(ord("0"), ord("9") + 1, (CHUNK, 7), dtype=np.uint8)
                text[:, at + 1] = ord(".")
            out.write(text.data)
            first += CHUNK
    half.rename(path)
    return path


def parquet_file(folder: Path, gb: float, groups: int, columns: int = COLUMNS, nested: bool = False) -> Path:
    """Rows in row groups, of so many bytes when decoded."""
    import pyarrow.parquet as pq

    path = folder / f"{gb:g}-{groups}-{columns}{'-nested' if nested else ''}.parquet"
    if path.exists():
        return path
    rows = int(gb * 1e9 / (8 + (4 * columns if not nested else 44)))
    half, writer, first = path.with_suffix(".half"), None, 0
    for group in range(groups):
        last = rows * (group + 1) // groups
        part = table(first, last - first, columns, nested)
        writer = writer or pq.ParquetWriter(half, part.schema)
        writer.write_table(part, row_group_size=1 << 40)
        first = last
    assert writer is not None
    writer.close()
    half.rename(path)
    return path


def dataset(path: str) -> Any:
    import penstock as ps

    return ps.read_csv(path) if path.endswith(".csv") else ps.read_parquet(path)


def peak_nbytes() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def epoch(ds: Any) -> dict[str, float]:
    """One epoch: rows, the first row number, seconds, seconds until the first batch, processor seconds."""
    began, cpu, rows, first, least = time.perf_counter(), time.process_time(), 0, 0.0, 1 << 62
    for batch in ds:
        first = first or time.perf_counter() - began
        rows += len(batch["row"])
        least = min(least, int(batch["row"].min()))
    seconds = time.perf_counter() - began
    found = {"rows": rows, "least": least, "seconds": seconds, "first_s": first}
    return found | {"cpu_s": time.process_time() - cpu}


def stretches(ds: Any, least: int, total: int) -> np.ndarray:
    """Of all whole batches of an epoch, how many hundredths of the dataset they show against a uniform shuffle."""
    shown = [len(np.unique((b["row"] - least) * STRETCHES // total)) for b in ds if len(b["row"]) == BATCH]
    return np.array(shown) / uniform_stretches(total)


def mixed(path: str) -> dict[str, float]:
    """A timed epoch, then coverage of the rows that come: over all batches of an epoch and in its worst tenth."""
    ds = dataset(path).shuffle(seed=1).batch(BATCH)
    told = ds.shuffle_quality().coverage
    found = epoch(ds)
    peak = peak_nbytes()
    again = epoch(ds)
    shown = stretches(ds, int(found["least"]), int(found["rows"]))
    tenths = [float(part.mean()) for part in np.array_split(shown, 10)]
    return found | {
        "told": told, "coverage": float(shown.mean()), "worst_tenth": min(tenths), "last_tenth": tenths[-1],
        "again_s": again["seconds"], "peak": peak, "nbytes": os.path.getsize(path),
    }  # fmt: skip


def exact(path: str) -> dict[str, Any]:
    """By windows as they are by default, then exactly: the epoch that fills the store, and two later ones."""
    windowed = dataset(path).shuffle(seed=1).batch(BATCH)
    exactly = dataset(path).shuffle(seed=1, exact=True).batch(BATCH)
    found = {"windowed": epoch(windowed), "first": epoch(exactly), "later": epoch(exactly)}
    return {**found, "peak": peak_nbytes()}


def cold(path: str) -> dict[str, Any]:
    """An epoch of each way from a disk whose pages are not in memory."""
    found: dict[str, Any] = {}
    ds = dataset(path)
    ways = {"in order": ds, "window 22MB": ds.shuffle(seed=1, window="22MB"), "default": ds.shuffle(seed=1)}
    epoch(ways["default"].batch(BATCH))  # a store, where it takes one, is there
    for name, way in ways.items():
        forget(Path(path))
        forget(Path(os.environ["PENSTOCK_CACHE"]))
        found[name] = epoch(way.batch(BATCH))
    return found


def forget(path: Path) -> None:
    """Drop a file's, or a folder's, pages from memory."""
    for file in [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]:
        descriptor = os.open(file, os.O_RDONLY)
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


JOBS = {"mixed": mixed, "exact": exact, "cold": cold}


def started(job: str, path: Path, cache: Path, limit: str | None = None) -> dict[str, Any]:
    """A job in a fresh process, with its own cache folder, and within a limit of memory."""
    argv = [sys.executable, "-m", "benchmarks.shuffle_large", "--job", job, str(path)]
    environment = {**os.environ, "PENSTOCK_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    if limit is None:
        done: Any = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    else:
        done = run_limited(argv, limit, env=environment, cwd=str(ROOT), capture=True)
    if done.returncode:
        raise RuntimeError(f"{job} {path}: {(done.stderr or '')[-3000:]}")
    found: dict[str, Any] = json.loads((done.stdout or "").splitlines()[-1])
    if limit is not None:
        found |= {"limit": limit, "how": done.how, "peak": done.peak_nbytes}
    return found


def sizes(folder: Path, gb: float) -> dict[str, Any]:
    """Text of every size; of Parquet, whose order is exact at any size, the smaller ones."""
    found = {}
    for each in sorted({min(0.1, gb), min(1.0, gb), gb}):
        found[f"csv, {each:g} GB"] = _alone(folder, "mixed", csv_file(folder, each))
        print("csv", each, found[f"csv, {each:g} GB"], flush=True)
    for each in sorted({min(0.1, gb), min(1.0, gb)}):
        found[f"parquet, 8 groups, {each:g} GB"] = _alone(folder, "mixed", parquet_file(folder, each, 8))
        print("parquet", each, found[f"parquet, 8 groups, {each:g} GB"], flush=True)
    return found


def shapes(folder: Path, gb: float) -> dict[str, Any]:
    found = {}
    cases: list[tuple[str, tuple[int, int, bool]]] = [
        ("1 group", (1, COLUMNS, False)), ("1,000 groups", (1000, COLUMNS, False)), ("4 columns", (8, 4, False)),
        ("400 columns", (8, 400, False)), ("nested", (8, COLUMNS, True)),
    ]  # fmt: skip
    for name, (groups, columns, nested) in cases:
        found[f"parquet, {name}, {gb:g} GB"] = _alone(
            folder, "mixed", parquet_file(folder, gb, groups, columns, nested)
        )
        print(name, found[f"parquet, {name}, {gb:g} GB"], flush=True)
    return found


def _alone(folder: Path, job: str, path: Path, limit: str | None = None) -> dict[str, Any]:
    """With a cache that is removed afterwards."""
    cache = folder / "cache"
    try:
        return started(job, path, cache, limit)
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def external(folder: Path, gb: float, limit: str) -> dict[str, Any]:
    """`penstock pack --shuffle`, DuckDB and `sort -R` on the same text under the same limit."""
    path, work = csv_file(folder, gb), folder / "work"
    most = int(0.6 * parse_size(limit)) // 1_000_000  # for what is not counted: they have no other way to be told
    settings: dict[str, Any] = {"memory_limit": f"{most}MB", "temp_directory": f"{work}/tmp", "threads": 2}
    settings["preserve_insertion_order"] = False
    query = f"copy (select * from read_csv('{path}') order by random()) to '{work}/out.parquet'"
    duck = f"import duckdb; duckdb.connect(config={settings!r}).execute({query!r})"
    ways = {
        WAYS[0]: [sys.executable, "-m", "penstock", "pack", str(path), str(work / "out"), "--format",
                                    "parquet", "--shuffle", "--seed", "1"],
        WAYS[1]: [sys.executable, "-c", duck],
        WAYS[2]: ["sort", "-R", "-S", f"{most}M", "-T", str(work), "-o", str(work / "out.csv"), str(path)],
    }  # fmt: skip
    found = {}
    for name, argv in ways.items():
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        environment = {**os.environ, "PENSTOCK_CACHE": str(work / "cache"), "PYTHONPATH": str(ROOT), "LC_ALL": "C"}
        began, cpu, disk = time.perf_counter(), _children_s(), _Disk(work)
        outcome = run_limited(
            ["timeout", str(PEER_MOST_S), *argv], limit, env=environment, cwd=str(folder), capture=True
        )
        seconds = time.perf_counter() - began
        found[name] = {
            "seconds": seconds, "cpu_s": _children_s() - cpu, "returncode": outcome.returncode,
            "limit": limit, "how": outcome.how, "killed": outcome.killed, "peak": outcome.peak_nbytes,
            "disk": disk.most(),
            "said": (outcome.stderr or "")[-300:] if outcome.returncode else "",
        }  # fmt: skip
        shutil.rmtree(work)
        print(name, found[name], flush=True)
    return found


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _Disk:
    """The most bytes that a folder held, looked at twice a second."""

    def __init__(self, folder: Path) -> None:
        import threading

        self._folder, self._most, self._ended = folder, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            nbytes = 0
            for path in self._folder.rglob("*"):
                try:
                    nbytes += path.stat().st_blocks * 512
                except FileNotFoundError:
                    continue  # removed while we looked
            self._most = max(self._most, nbytes)

    def most(self) -> int:
        self._ended.set()
        self._thread.join()
        return self._most


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--gb", type=float, default=8.0)
    parser.add_argument("--folder", default=str(ROOT / ".bench" / "shuffle_large"))
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results"))
    parser.add_argument("--job", nargs=2)
    parser.add_argument("--limit", help="memory for the parts exact (1GB by default) and external (500MB)")
    asked = parser.parse_args()
    if asked.job:
        print(json.dumps(JOBS[asked.job[0]](asked.job[1])))
        return
    folder, out = Path(asked.folder), Path(asked.out)
    folder.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    kept = out / "shuffle_large.json"
    found: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    runs: dict[str, Callable[[], dict[str, Any]]] = {
        "sizes": lambda: sizes(folder, asked.gb),
        "shapes": lambda: shapes(folder, min(1.0, asked.gb)),
        "exact": lambda: _alone(folder, "exact", csv_file(folder, asked.gb), asked.limit or "1GB"),
        "external": lambda: external(folder, asked.gb, asked.limit or "500MB"),
        "cold": lambda: {
            "csv": _alone(folder, "cold", csv_file(folder, min(1.0, asked.gb))),
            "parquet, 8 groups": _alone(folder, "cold", parquet_file(folder, min(1.0, asked.gb), 8)),
        },
    }
    for part in asked.parts:
        if part != "report":
            found[part] = {"gb": asked.gb, "found": runs[part](), "machine": machine()}
            kept.write_text(json.dumps(found, indent=1) + "\n")
    (out / "shuffle_large.md").write_text(report(found))


def report(found: dict[str, Any]) -> str:
    """The page of all parts that were measured."""
    lines = ["# Shuffles of larger data", ""]
    for part in ("sizes", "shapes"):
        if part in found:
            lines += [
                f"## {part.capitalize()}", "", place(found[part]["machine"]), "",
                "| data | rows | coverage, all batches of an epoch | worst tenth | told by `shuffle_quality()` "
                "| first batch after, s | first epoch, s | second, s | processor, first epoch, s | peak |",
                "|---|---|---|---|---|---|---|---|---|---|",
            ]  # fmt: skip
            for name, one in found[part]["found"].items():
                lines.append(
                    f"| {name} | {one['rows']:,.0f} | {one['coverage']:.3f} | {one['worst_tenth']:.3f} "
                    f"| {one['told']:.3f} | {one['first_s']:.1f} | {one['seconds']:.0f} | {one['again_s']:.0f} "
                    f"| {one['cpu_s']:.0f} | {size(int(one['peak']))} |"
                )
            lines.append("")
    if "exact" in found:
        one = found["exact"]["found"]
        rates = {name: (one[name]["rows"] / one[name]["seconds"], one[name]["rows"] / one[name]["cpu_s"])
                 for name in ("windowed", "first", "later")}  # fmt: skip
        lines += [
            f"## `exact=True`, {found['exact']['gb']:g} GB of CSV in {one['limit']} of memory ({one['how']})", "",
            place(found["exact"]["machine"]), "",
            "| epoch | rows a second | of the default shuffle's | rows a processor second | of the default shuffle's |",
            "|---|---|---|---|---|",
        ]  # fmt: skip
        for name, (wall, cpu) in rates.items():
            base = rates["windowed"]
            lines.append(f"| {name} | {wall:,.0f} | {wall / base[0]:.2f} | {cpu:,.0f} | {cpu / base[1]:.2f} |")
        lines += ["", f"The most memory in use, page cache left out: {size(int(one['peak']))}.", ""]
    if "external" in found:
        limit = found["external"]["found"][WAYS[0]]["limit"]
        lines += [
            f"## External shuffle, {found['external']['gb']:g} GB of CSV in {limit} of memory", "",
            place(found["external"]["machine"]), "", "| way | seconds | processor, s | most disk | peak | ended |",
            "|---|---|---|---|---|---|",
        ]  # fmt: skip
        for name, one in found["external"]["found"].items():
            how = "killed for memory" if one["killed"] else {0: "well", 124: "cut off"}.get(
                one["returncode"], f"error {one['returncode']}"
            )  # fmt: skip
            lines.append(
                f"| {name} | {one['seconds']:.0f} | {one['cpu_s']:.0f} | {size(one['disk'])} | {size(one['peak'])} "
                f"| {how} |"
            )
        lines.append("")
    if "cold" in found:
        lines += [
            "## Cold disk", "", place(found["cold"]["machine"]), "",
            "| data | way | seconds | processor, s |", "|---|---|---|---|",
        ]  # fmt: skip
        for kind, ways in found["cold"]["found"].items():
            lines += [f"| {kind} | {way} | {o['seconds']:.1f} | {o['cpu_s']:.1f} |" for way, o in ways.items()]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
