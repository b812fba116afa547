"""How long the guard's ladder takes to end where memory is short: in a step that fits, or in a verdict.

Run: python -m benchmarks.ladder_time [MB ...] [--dry]
Writes results/ladder_time.json and .md unless --dry is given.
Covers: plain torch, 76 MB of parameters, SGD with momentum, one batch of 8,192 rows, RLIMIT_DATA from too little to
plenty; each try is a fresh process. Does not cover: how small the limit can be (guard_memory.py).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]  # so that it also runs as a file

from benchmarks.guard_memory import surroundings  # noqa: E402
from benchmarks.guard_memory_job import leave, warm_torch  # noqa: E402
from benchmarks.report import machine  # noqa: E402

RESULTS = ROOT / "benchmarks/results/ladder_time.json"
MB = 10**6
LIMITS = (180, 240, 280, 300, 320, 400)
ROWS = 8192
TARGET_S = 10.0


def one(nbytes: int) -> dict[str, Any]:
    """One step under a limit: how it ended, and how long failing took."""
    import numpy as np
    import torch

    from penstock.core.errors import OutOfMemory
    from penstock.core.events import Event, events
    from penstock.guard import Guard

    warm_torch()
    rng = np.random.default_rng(0)
    batch = rng.normal(size=(ROWS, 512)).astype(np.float32), rng.integers(0, 8, ROWS)
    failures: list[tuple[float, float]] = []

    def note(event: Event) -> None:
        if event.kind == "guard.oom":
            failures.append((time.perf_counter(), time.process_time()))

    events.listen(note)
    leave(nbytes)
    linear, relu = torch.nn.Linear, torch.nn.ReLU
    try:
        model = torch.nn.Sequential(linear(512, 4096), relu(), linear(4096, 4096), relu(), linear(4096, 8))
    except RuntimeError:
        return {"end": "the model itself does not fit"}
    guard = Guard(model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9))
    start = time.perf_counter(), time.process_time()
    try:
        guard.step(batch, torch.nn.CrossEntropyLoss())
        end, said = "trained", ""
    except OutOfMemory as error:
        end, said = "gave up", str(error)
    failing = [round(failures[-1][n] - start[n], 2) if failures else 0.0 for n in (0, 1)]
    found = {"end": end, "failures": len(failures), "failing_s": failing[0], "failing_cpu_s": failing[1]}
    whole_s = round(time.perf_counter() - start[0], 2)
    return {**found, "micro": guard.micro_batch, "whole_s": whole_s, "said": said}


def table(results: list[dict[str, Any]], when: str) -> str:
    """The results as a page."""
    lines = [
        "# How long the ladder takes",
        "",
        f"`python -m benchmarks.ladder_time`, {when}. 76 MB of parameters, SGD with momentum, one batch of {ROWS:,}",
        f"rows; bytes free when the model is made (RLIMIT_DATA). The aim: failing steps end within {TARGET_S:.0f} s.",
        "A failed try is also a look at a small part that does not fit. Where the machine had other work, CPU seconds",
        "tell what failing costs, and the others do not.",
        "",
        "| free | it ended | failed tries | seconds of failing | of them CPU | micro-batch | seconds in all |",
        "|---|---|---|---|---|---|---|",
    ]
    for found in results:
        cells = [found.get(name, "-") for name in ("failures", "failing_s", "failing_cpu_s", "micro", "whole_s")]
        lines.append(f"| {found['free']} MB | {found['end']} | " + " | ".join(map(str, cells)) + " |")
    said = next((found["said"] for found in results if found.get("said")), "")
    return "\n".join([*lines, "", *([f"The verdict: {said}"] if said else [])]) + "\n"


def main() -> None:
    """Measure, or run one try."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("free", nargs="*", type=int, metavar="MB", help="free memory, instead of all sizes")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        sys.stdout.write(json.dumps(one(options.one)) + "\n")
        sys.stdout.flush()
        os._exit(0)  # tearing down is no part of it
    results = []
    for free in options.free or LIMITS:
        command = [sys.executable, str(ROOT / "benchmarks/ladder_time.py"), "--one", str(free * MB)]
        done = subprocess.run(
            command, env=surroundings("torch-wide"), capture_output=True, text=True, timeout=900, check=True
        )
        results.append({"free": free, **json.loads(done.stdout.splitlines()[-1])})
        sys.stdout.write(f"{results[-1]}\n")
        sys.stdout.flush()
    when = f"{datetime.date.today()}, {machine()['cores']} cores, shared"
    if not options.dry:
        RESULTS.write_text(json.dumps({"when": when, "results": results}, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(table(results, when))


if __name__ == "__main__":
    main()
