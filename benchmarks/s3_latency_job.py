"""python -m benchmarks.s3_latency_job JSON: one measurement against the slow store, in a process of its own.

Covers: what the store can supply, the local rate, a consumer on cold S3, the second epoch from `.cache(folder)`.
Does not cover: the store (s3_latency_server.py), rounds and verdicts (s3_latency.py).
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.images import BATCH, SIDE

READERS = 32
LOAD = 0.5
"""The consumer asks for half of what the store supplies and the cores decode: bandwidth suffices."""


def supply(urls: list[str], seconds: float) -> float:
    """Objects a second that plain parallel reads get, decoding nothing."""
    from penstock.sources.storage import files as storage

    def read(url: str) -> bytes:
        return storage.read_range(url, 0, 1 << 24)  # with its length given, one request is enough

    read(urls[0])
    began, done = time.perf_counter(), 0
    with ThreadPoolExecutor(READERS) as threads:
        while time.perf_counter() - began < seconds:
            done += sum(1 for data in threads.map(read, urls[: 4 * READERS]) if data)
    return done / (time.perf_counter() - began)


def free_rate(dataset: Any, seconds: float) -> float:
    """Rows a second, repeated, after the first second."""
    batches = iter(dataset.repeat())
    warm = time.perf_counter() + min(1.0, seconds / 2)
    while time.perf_counter() < warm:
        next(batches)
    began, rows = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        rows += len(next(batches)[1])
    rate = rows / (time.perf_counter() - began)
    batches.close()
    return rate


def consume(dataset: Any, step_s: float) -> tuple[float, int]:
    """One epoch with a consumer: the share of the time it waited after the first batch, and the rows."""
    waited = stepped = 0.0
    rows = 0
    with iter(dataset) as batches:
        batch = next(batches)
        while batch is not None:
            rows += len(batch[1])
            del batch
            before = time.perf_counter()
            time.sleep(step_s)
            ready = time.perf_counter()
            batch = next(batches, None)
            stepped += ready - before
            waited += 0.0 if batch is None else time.perf_counter() - ready
    return waited / (waited + stepped), rows


def count(endpoint: str) -> int:
    """Requests that the store has seen."""
    with urllib.request.urlopen(f"{endpoint}/__count") as answer:
        return int(answer.read())


def main(told: str) -> None:
    """Measure everything and print one line."""
    import os

    import penstock as ps

    task = json.loads(told)
    os.environ.update(task["environment"])
    endpoint, seconds = task["environment"]["AWS_ENDPOINT_URL"], task["seconds"]

    def chain(found: Any) -> Any:
        return found.shuffle(seed=1).batch(BATCH, drop_last=True)

    local = chain(ps.read_images(task["local"], size=(SIDE, SIDE)))
    remote = ps.read_images(task["remote"], size=(SIDE, SIDE))
    urls = [f"{task['remote']}/{name}" for name in task["names"]]
    supplied, here = supply(urls, seconds), free_rate(local, seconds)
    wanted = LOAD * min(supplied, here)
    waited, rows = consume(chain(remote), BATCH / wanted)
    second: dict[str, float] = {}
    requests = 0
    for what in ("samples", "bytes"):
        folder = tempfile.mkdtemp(prefix="penstock-s3-")
        try:
            kept = remote.cache(folder, what=what)
            for batch in kept.batch(BATCH):  # all rows: those that drop_last leaves out are others in each epoch
                del batch
            asked = count(endpoint)
            # In turns with the local files: the machine is not the same all the time.
            turns = [(free_rate(local, seconds / 2), free_rate(chain(kept), seconds / 2)) for _ in range(5)]
            here, second[what] = (statistics.median(rates) for rates in zip(*turns, strict=True))
            second[f"{what}_ratio"] = statistics.median(mine / plain for plain, mine in turns)
            requests += count(endpoint) - asked
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    found = {
        "supply": supplied, "local": here, "wanted": wanted, "waited": waited, "rows": rows, **second,
        "requests": requests,
    }  # fmt: skip
    print("RESULT " + json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
