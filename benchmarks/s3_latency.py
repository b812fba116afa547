"""Pictures in S3, one object each, every request answered 30 ms late: does the consumer wait, and is the cache local?

Covers: a cold epoch with a consumer that asks for half of what the store can supply; the second epoch from a cache.
Does not cover: peers; real networks. The store (moto) is written in Python and shares the cores with the reader.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT

LATENCY_MS = 30
WAIT_MOST = 0.05
LOCAL_LEAST = 0.9
JOB_TIMEOUT_S = 300


@contextmanager
def store(folder: Path) -> Iterator[dict[str, str]]:
    """The slow store, filled; yields the environment that clients need."""
    argv = [sys.executable, "-m", "benchmarks.s3_latency_server", str(folder), str(LATENCY_MS)]
    child = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdin is not None
    try:
        port = next((line.split()[1] for line in child.stdout if line.startswith("READY")), None)
        if port is None:
            raise RuntimeError(f"the S3 server ended with {child.wait()} before it was ready")
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
        }  # fmt: skip
    finally:
        child.stdin.close()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()


def measure(folder: Path, environment: dict[str, str], seconds: float) -> dict[str, float] | str:
    """One job; its numbers, or what went wrong."""
    names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*.jpg"))]
    task = {
        "environment": environment, "local": str(folder), "remote": "s3://pictures", "names": names, "seconds": seconds,
    }  # fmt: skip
    argv = [sys.executable, "-m", "benchmarks.s3_latency_job", json.dumps(task)]
    try:
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=JOB_TIMEOUT_S, env={**os.environ})
    except subprocess.TimeoutExpired:
        return f"ended after {JOB_TIMEOUT_S} s without a result"
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            found: dict[str, float] = json.loads(line.removeprefix("RESULT "))
            return found
    return f"exit code {done.returncode}\n{done.stderr[-1500:]}"


def run(options: Any) -> None:
    """Rounds, verdicts, results."""
    from benchmarks import data, report

    where = report.machine()
    folder = data.images(64 if options.quick else 1000)
    rounds: list[dict[str, float]] = []
    errors: dict[str, str] = {}
    with store(folder) as environment:
        for turn in range(options.turns(3)):
            found = measure(folder, environment, 0.7 if options.quick else 3.0)
            if isinstance(found, str):
                errors["penstock"] = found
                print(f"  round {turn + 1}: failed: {found.strip().splitlines()[-1][:200]}", flush=True)
            else:
                rounds.append(found)
                print(f"  round {turn + 1}: " + ", ".join(f"{k} {v:,.4g}" for k, v in found.items()), flush=True)
    _write(options, rounds, errors, where)


def _write(options: Any, rounds: list[dict[str, float]], errors: dict[str, str], where: dict[str, Any]) -> None:
    from benchmarks import report

    mid = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]} if rounds else {}
    asked = max((r["requests"] for r in rounds), default=0)
    ratio = mid["bytes_ratio"] if mid else 0.0
    verdicts = [
        report.Verdict(
            f"cold S3 with {LATENCY_MS} ms latency: the consumer waits <= {WAIT_MOST:.0%} after the first batch",
            f"{mid['waited']:.2%}" if mid else "failed", bool(mid) and mid["waited"] <= WAIT_MOST,
        ),
        report.Verdict(
            f"second epoch from `.cache(folder)` (bytes) >= {LOCAL_LEAST:g}x local files, no request to the store",
            f"{ratio:.2f}x, {asked:.0f} requests" if mid else "failed",
            bool(mid) and ratio >= LOCAL_LEAST and asked == 0,
        ),
    ]  # fmt: skip
    rows = [
        [
            f"{r['supply']:,.0f}",
            f"{r['local']:,.0f}",
            f"{r['wanted']:,.0f}",
            f"{r['waited']:.2%}",
            f"{r['bytes']:,.0f}",
            f"{r['samples']:,.0f}",
        ]
        for r in rounds
    ]
    columns = ("store supplies /s", "local files /s", "consumer asks /s", "consumer waited", "kept bytes /s",
               "kept samples /s")  # fmt: skip
    about = (
        f"The pictures of the images benchmark as single objects in a local S3 server (moto) that answers each request "
        f"{LATENCY_MS} ms late. First what 32 plain parallel readers get from it and what penstock does with the "
        "same files on disk; then a consumer that asks for half of the smaller one, through one cold epoch; then the "
        "second epoch from a cache in a folder, of bytes as they are and of decoded samples."
    )
    title = f"S3 with {LATENCY_MS} ms latency"
    paper = report.Paper(
        "s3_latency", title, about, where, columns, rows, verdicts, {"rounds": rounds}, errors, options.quick
    )
    paper.write()
    if mid:
        _picture(mid, title, options.quick)


def _picture(mid: dict[str, float], title: str, quick: bool) -> None:
    from benchmarks import report

    plt = report.plotter()
    figure, axis = plt.subplots(figsize=(7, 2.2))
    bars = {"the store supplies": "supply", "local files": "local", "kept bytes": "bytes", "kept samples": "samples"}
    axis.barh(list(bars), [mid[key] for key in bars.values()], color=["#9aa4b2", "#9aa4b2", "#1f6feb", "#1f6feb"])
    axis.set_xlabel(f"images a second; the consumer waited {mid['waited']:.2%} on cold S3")
    axis.set_title(title, fontsize=10)
    report.save(figure, "s3_latency", quick)
