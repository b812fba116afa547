"""A shuffled CSV in S3 whose requests are answered 30 ms late: how well is it mixed, how fast, and does anyone wait?

Covers: pieces of several sizes, windows of neighbours as they were before, rows in order; coverage of the rows that
come, requests, bytes a second, and a consumer that asks for half of that.
Does not cover: real networks, pictures (s3_latency.py). The store is written in Python and shares the cores.

    python -m benchmarks.shuffle_remote [--gb 0.2] [--ways WAY ...] [--folder .bench/shuffle_large]

Every way is put to the results as it ends, and kept until it is measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import machine
from benchmarks.s3_latency import LATENCY_MS, store
from benchmarks.s3_latency_server import BUCKET, COUNT
from benchmarks.shuffle_data import BATCH, OLD_WINDOW, place
from benchmarks.shuffle_large import csv_file, stretches

ROOT = Path(__file__).resolve().parent.parent
PIECES = (256_000, 64_000)
LOAD = 0.5
CHILD_TIMEOUT_S = 300


def child(name: str, way: str, paced_rate: float) -> dict[str, float]:
    """One way in this process: an epoch as fast as it goes, or, given a rate, one of a consumer that needs its time."""
    import penstock as ps
    from penstock.core.wrapped_source import WrappedUnits
    from penstock.dataset import Dataset
    from penstock.plan.steps import Node, Read
    from penstock.sources.text import scattered

    if way.isdigit():
        scattered.REMOTE_NBYTES = int(way)
    ds = ps.read_csv(f"s3://{BUCKET}/{name}")
    if way.startswith("window"):
        step = ds.node.step
        assert isinstance(step, Read)
        ds = Dataset(Node(Read(WrappedUnits(step.source)))).shuffle(seed=1, window=OLD_WINDOW)  # type: ignore[arg-type]
    elif way != "in order":
        ds = ds.shuffle(seed=1)
    iterator = iter(ds.batch(BATCH))
    before, rows, first = requests(), 0, 1 << 62
    began = time.perf_counter()
    first_batch_s = waited_s = 0.0
    for batch in iterator:
        if not rows:
            first_batch_s = time.perf_counter() - began
            began, waited_s = time.perf_counter(), iterator.waited_s
        rows, first = rows + len(batch["row"]), min(first, int(batch["row"].min()))
        if paced_rate:  # what the step of a model would take
            time.sleep(max(0.0, began + rows / paced_rate - time.perf_counter()))
    seconds = time.perf_counter() - began
    found = {"rows": rows, "seconds": seconds, "first_batch_s": first_batch_s, "requests": requests() - before}
    found["waited"] = (iterator.waited_s - waited_s) / seconds
    if not paced_rate:
        found["coverage"] = float(np.mean(stretches(ds.batch(BATCH), first, rows)))
    return found


def requests() -> int:
    """How many the store has answered."""
    with urllib.request.urlopen(os.environ["AWS_ENDPOINT_URL"] + COUNT) as answer:
        return int(answer.read())


def started(environment: dict[str, str], name: str, way: str, paced_rate: float = 0.0) -> dict[str, float]:
    """A way in a fresh process."""
    argv = [sys.executable, "-m", "benchmarks.shuffle_remote", "--child", json.dumps([name, way, paced_rate])]
    done = subprocess.run(
        argv, cwd=ROOT, env={**os.environ, **environment, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=False, timeout=CHILD_TIMEOUT_S,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{way}: {done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def report(found: dict[str, Any]) -> str:
    """The page."""
    lines = [
        "# A shuffled CSV in S3", "",
        f"{found['nbytes'] / 1e6:,.0f} MB, every request answered {LATENCY_MS} ms late by a store on the loopback that "
        f"is written in Python and shares the cores. {place(found['machine'])}", "",
        "The consumer of the last column asks for half of the rate that the same way reached before; what it waited "
        "after its first batch.", "",
        "| way | coverage | requests | MB/s | first batch after, s | waiting at half of that rate | measured | load |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for way, one in found["ways"].items():
        lines.append(
            f"| {way} | {one['coverage']:.3f} | {one['requests']:,.0f} | {found['nbytes'] / 1e6 / one['seconds']:.1f} "
            f"| {one['first_batch_s']:.2f} | {100 * one['paced']['waited']:.1f} % "
            f"| {one['date']} | {one['load']} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gb", type=float, default=0.2)
    parser.add_argument("--folder", default=str(ROOT / ".bench" / "shuffle_large"))
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results"))
    parser.add_argument("--ways", nargs="*", help="'in order', 'window', or bytes of a piece; all of them by default")
    parser.add_argument("--child")
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(child(*json.loads(asked.child))))
        return
    folder = Path(asked.folder) / f"remote-{asked.gb:g}"
    folder.mkdir(parents=True, exist_ok=True)
    path = csv_file(folder, asked.gb)
    names = {"in order": "in order", f"windows of {OLD_WINDOW} of neighbours": "window"}
    names |= {f"scattered pieces of {nbytes // 1000} KB": str(nbytes) for nbytes in PIECES}
    kept, nbytes = Path(asked.out) / "shuffle_remote.json", path.stat().st_size
    with store(folder) as environment:
        for name, way in names.items():
            if asked.ways and way not in asked.ways:
                continue
            free = started(environment, path.name, way)
            paced = started(environment, path.name, way, LOAD * free["rows"] / free["seconds"])
            one: dict[str, Any] = {**free, "paced": paced, "date": machine()["date"]}
            one["load"] = round(os.getloadavg()[0], 1)
            print(name, json.dumps(one), flush=True)
            earlier = json.loads(kept.read_text())["ways"] if kept.exists() else {}
            ways = {each: one if each == name else earlier[each] for each in names if each == name or each in earlier}
            found = {"nbytes": nbytes, "ways": ways, "machine": machine()}
            kept.write_text(json.dumps(found, indent=1) + "\n")
            kept.with_suffix(".md").write_text(report(found), encoding="utf-8")


if __name__ == "__main__":
    main()
