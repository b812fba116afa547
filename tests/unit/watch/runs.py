"""Runs made up for the tests: what a recorder would have written, in any length, without training anything."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GB = 10**9
START_T = 1_790_000_000.0


def event(t: float, kind: str, who: str = "train", **values: Any) -> dict[str, Any]:
    return {"t": round(t, 3), "kind": kind, "who": who, **values}


def start(t: float = START_T, attempt: int = 1, **values: Any) -> dict[str, Any]:
    config = {"data": "fashion/", "model": "cnn", "batch": 256, "epochs": 10, "memory": "2GB", "seed": 7}
    surroundings = {
        "host": "workbench",
        "cores": 8,
        "limit_nbytes": 2 * GB,
        "python": "3.12.4",
        "packages": {"numpy": "2"},
    }
    given = {"run": "r", "pid": 42, "limit_nbytes": 2 * GB, "config": config, "environment": surroundings, **values}
    return event(t, "run.start", attempt=attempt, **given)


def progress(t: float, number: int, per_epoch: int = 100, **values: Any) -> dict[str, Any]:
    """The `number`-th progress event, from 1."""
    logs = {"loss": round(0.3 + 2 * math.exp(-number / 300), 5), "accuracy": round(1 - math.exp(-number / 200), 5)}
    given = {
        "epoch": (number - 1) // per_epoch, "epochs": 10, "step": (number - 1) % per_epoch + 1,
        "steps_per_epoch": per_epoch, "total_steps": number, "samples": number * 256, "samples_per_s": 5000.0,
        "waited_share": 0.04, "waited_s": 1.0, "logs": logs, "micro": 256, **values,
    }  # fmt: skip
    return event(t, "train.progress", "cnn", **given)


def sample(t: float, other: int = GB // 2, limit: int = 2 * GB, **holders: int) -> dict[str, Any]:
    held = {"batches": GB // 10, "read fashion/": GB // 5, **holders, "not accounted for": other}
    return event(t, "memory.sample", "recorder", used_nbytes=sum(held.values()), limit_nbytes=limit, holders=held)


def training(count: int = 400, *, every_s: float = 0.5, seed: int = 0, end: bool = True) -> Iterator[dict[str, Any]]:
    """A whole run: progress, memory, epochs, a batch that did not fit, a death and a restart."""
    rng, t, per_epoch = random.Random(seed), START_T, max(1, count // 10)
    yield start()
    stages = [
        ("read fashion/", 38_000_000),
        ("shuffle", 0),
        ("decode + augment", 96_000_000),
        ("batch(256)", 42_000_000),
    ]
    plan = "read fashion/\n-> shuffle rows, exactly (seed 7): 0 B, computed\n-> decode straight into batch(256)"
    yield event(t + 0.1, "run.plan", text=plan, stages=[{"name": name, "nbytes": n} for name, n in stages])
    yield event(t + 0.2, "run.forecast", text="Fits: 1.31 GB of 2 GB", fits=True, micro=256)
    yield event(t + 0.3, "train.begin", "cnn", epochs=10, epoch=0, step=0, resumed=False)
    for number in range(1, count + 1):
        t, x = START_T + number * every_s, number / count
        split = x > 0.6
        loss = 0.35 + 1.9 * math.exp(-6 * x) + rng.gauss(0, 0.03)
        logs = {"loss": round(loss, 5), "accuracy": round(0.93 - 0.8 * math.exp(-7 * x) + rng.gauss(0, 0.005), 5)}
        wait = max(0.0, 0.3 * math.exp(-8 * x) + 0.03 + rng.gauss(0, 0.01))
        speed = 5200 * (1 - wait) * (0.9 if split else 1) + rng.gauss(0, 100)
        values = {"logs": logs, "waited_share": wait, "samples_per_s": speed, "micro": 128 if split else 256}
        yield progress(t, number, per_epoch, **values)
        if number % 2 == 0:
            held = {
                "optimizer": int(0.38 * GB),
                "model": int(0.19 * GB),
                "cache": 0 if split else int(0.12 * GB * min(1, 4 * x)),
            }
            yield sample(t, int(GB * (0.5 + 0.1 * x + (0.24 if abs(x - 0.59) < 0.012 else 0))), **held)
        if number == count * 6 // 10:
            yield event(t, "watchdog.read_ahead", "data", down=True, level=1, limit=2 * GB, measured=int(1.93 * GB))
            yield event(t, "guard.oom", "cnn", phase="backward", rows=256, text="ResourceExhausted")
            yield event(t, "guard.smaller", "cnn", micro=128, why="half the rows need half of the activations")
            yield event(t, "cache.dropped", "cache", nbytes=120_000_000)
        if number == count * 8 // 10:
            yield event(t, "run.death", "supervisor", signal=9, why="killed by the kernel: out of memory", micro=128)
            yield event(t + 0.1, "run.restart", "supervisor", attempt=2, micro=128)
            yield start(t + 0.2, attempt=2)
        if number in (count // 50, count // 20, count // 10):
            yield event(t, "tune.threads", "workers", threads=6, before=4, why="the model waits and cores are idle")
        if number % per_epoch == 0:
            held_out = {
                "val_loss": round(0.42 + 1.5 * math.exp(-6 * x), 4),
                "val_accuracy": round(0.91 - 0.7 * math.exp(-7 * x), 4),
            }
            epoch = number // per_epoch - 1
            yield event(
                t,
                "train.epoch",
                "cnn",
                epoch=epoch,
                epochs=10,
                logs=logs | held_out,
                seconds=per_epoch * every_s,
                samples=0,
            )
            yield event(t, "guard.saved", "checkpoints/x", step=number, nbytes=11_000_000)
    if end:
        yield event(t + 1, "train.end", "cnn", total_steps=count, stopped=False)
        yield event(t + 1, "run.end", status="finished", error="")


def write_run(folder: Path, events: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "events.jsonl", "a", encoding="utf-8") as file:
        for record in events:
            file.write(json.dumps(record, separators=(",", ":")) + "\n")
    return folder


def write_long_run(folder: Path, steps: int) -> Path:
    """A run folder with one progress event a step and a memory sample every second one."""
    run_folder = write_run(folder, [start()])
    step, held = json.dumps(progress(0, 77)), json.dumps(sample(0))
    with open(run_folder / "events.jsonl", "a", encoding="utf-8") as file:
        for number in range(steps):
            t = f'"t": {START_T + number / 2}'
            file.write(step.replace('"t": 0', t, 1).replace('"total_steps": 77', f'"total_steps": {number}', 1) + "\n")
            if number % 2:
                file.write(held.replace('"t": 0', t, 1) + "\n")
    return run_folder / "events.jsonl"
