"""The training job of memory_growth.py, run inside a memory limit.

Covers: python -m benchmarks.growth_job images|csv|parquet PATH COUNT -> one line of JSON.
Does not cover: the limit and the verdict.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

import penstock as ps

SIDE = 64


def dataset(kind: str, path: str, count: int) -> Any:
    """The shuffled batches; of a table, the first `count` files."""
    if kind == "images":
        return ps.read_images(path, size=(SIDE, SIDE)).shuffle(seed=1).batch(64)
    files = sorted(str(file) for file in Path(path).glob(f"*.{kind}"))[:count]
    read: Any = {"csv": ps.read_csv, "parquet": ps.read_parquet}[kind]
    return read(files, label="label").shuffle(seed=1).batch(4096)


def model(kind: str) -> torch.nn.Module:
    """A model small enough for a processor."""
    if kind != "images":
        return torch.nn.Sequential(torch.nn.Linear(40, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 5, stride=4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(10)
    )


def main(kind: str, path: str, count: str) -> None:
    """Train one epoch."""
    torch.manual_seed(1)
    torch.set_num_threads(1)  # the models are too small for more, and the readers need the other cores
    net, rows, began = model(kind), 0, time.perf_counter()
    optimizer: torch.optim.Optimizer | None = None
    total = torch.zeros(())
    for x, y in dataset(kind, path, int(count)).torch():
        inputs = x.permute(0, 3, 1, 2).float() / 255 if kind == "images" else x
        loss = torch.nn.functional.cross_entropy(net(inputs), y.long())
        if optimizer is None:  # after the first pass, which gives lazy layers their size
            optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total += loss.detach()
        rows += len(y)
    told = {"rows": rows, "seconds": time.perf_counter() - began, "finite": bool(torch.isfinite(total))}
    print("RESULT " + json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
