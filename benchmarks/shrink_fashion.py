"""Shrinking a small convolution network on Fashion-MNIST (Debian package dataset-fashion-mnist).

Covers: int8 against float32, half of the channels removed, a distilled half-width student against the same one alone.
Does not cover: large models; one thread of a CPU measures latency.

Run: python -m benchmarks.shrink_fashion [--quick] [--rows 12000] [--epochs 5] [--networks 3] [--seeds 5]
"""

from __future__ import annotations

import argparse
import datetime
import fcntl
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fashion import Rows, fetch

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
SEED = 7
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}


@dataclass(frozen=True)
class Result:
    """What was found with the network of one seed. `duel`: milliseconds of whole and half."""

    int8: Any
    half: Any
    as_long: float
    duel: dict[str, list[float]]


def network() -> Any:
    """A plain convolution network of 0.42 million parameters."""
    import keras

    layers = keras.layers
    return keras.Sequential([
        keras.Input((28, 28, 1)),
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(64, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(128, activation="relu"),
        layers.Dense(10, activation="softmax"),
    ])  # fmt: skip


def shrunk(
    train: Rows,
    test: Rows,
    options: argparse.Namespace,
    seed: int,
    meanwhile: Callable[[Any], None] = lambda model: None,
) -> Result:
    """A network of one seed, its int8 file, its half, and the accuracy of the whole one trained as long as the half.

    Files are measured side by side, each in its process, while this one goes on training (and does what `meanwhile`
    does with the network): peaks and accuracies do not mind. Latency does, and is measured when nothing of this runs.
    """
    import keras

    from penstock.compress import Fit, Recipe, Shrunk, export_lite, remove_channels, save_model, score
    from penstock.compress.child.probe import ModelFacts, measure
    from penstock.compress.child.spill import Spilled
    from penstock.compress.framework import framework_of
    from penstock.compress.train import fine_tune

    keras.utils.set_random_seed(seed)
    model = network()
    kit, tune = framework_of(model), Fit(options.tune_epochs)
    fine_tune(kit, model, train, Fit(options.epochs))
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(3) as side:
        folder = Path(name)
        held_out = Spilled.write(test, folder / "held_out")
        whole = save_model(model, folder / "whole.keras")
        plain, many = kit.copy(model), kit.parameters(model)

        def int8() -> ModelFacts:
            return measure(export_lite(plain, folder / "int8.tflite", "int8", calibration=train), held_out)

        before, small = side.submit(measure, whole, held_out), side.submit(int8)
        half = remove_channels(model, 0.5)
        fine_tune(kit, half, train, tune)
        halved = save_model(half, folder / "half.keras")
        after = side.submit(measure, halved, held_out)
        meanwhile(model)
        fine_tune(kit, model, train, tune)  # a control: the whole network, trained as long
        as_long = score(lambda x: kit.predict(model, x), test).value
        exact = replace(before.result(), parameters=many)
        packed, thin = (
            replace(small.result(), parameters=many),
            replace(after.result(), parameters=kit.parameters(half)),
        )
        reports = (
            Shrunk(None, (), Recipe(quantize="int8"), exact, (packed,)),
            Shrunk(None, (), Recipe(prune=0.5, structured=True), exact, (thin,)),
        )
        with alone(options.lock):
            duel = against(whole, halved, test, options.runs)
    print(f"seed {seed}:", *reports, duel, sep="\n", flush=True)
    return Result(*reports, as_long, duel)


def against(whole: Path, half: Path, test: Rows, runs: int) -> dict[str, list[float]]:
    """Whole against half, run by run in one process: only what is measured side by side can be compared."""
    inputs = whole.with_name("x.npy")
    np.save(inputs, next(iter(test))[0])
    command = [sys.executable, "-m", "benchmarks.shrink_duel", str(whole), str(half), str(inputs), str(runs)]
    done = subprocess.run(command, env=os.environ | ONE_THREAD, capture_output=True, text=True, check=True)
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


@contextmanager
def alone(lock: Path | None) -> Iterator[None]:
    """Hold a lock file that other measurements on this machine hold too, if one was named."""
    if lock is None:
        yield
        return
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def students(teacher: Any, test: Rows, options: argparse.Namespace) -> dict[str, list[float]]:
    """Accuracy of half-width students with and without the teacher: the same rows, epochs and start for both."""
    import keras

    from penstock.compress import Fit, distill, score, width
    from penstock.compress.framework import framework_of
    from penstock.compress.train import fine_tune

    kit, fit, train = framework_of(teacher), Fit(options.student_epochs), Rows("train", options.student_rows, 64)
    found: dict[str, list[float]] = {"alone": [], "distilled": []}
    with tempfile.TemporaryDirectory() as cache:
        for seed in range(options.seeds):
            print(f"students so far: {found}", flush=True)
            for way, results in found.items():
                keras.utils.set_random_seed(seed)
                student = width(teacher, 0.5, init="fresh")
                if way == "alone":
                    fine_tune(kit, student, train, fit)
                else:
                    distill(teacher, student, train, temperature=2.0, alpha=0.5, fit=fit, cache=cache)
                results.append(score(partial(kit.predict, student), test).value)
    return found


def lesson(found: dict[str, list[float]], options: argparse.Namespace) -> list[str]:
    """The students' table."""
    lines = [f"| half-width student | accuracy, mean of {options.seeds} seeds | spread (min to max) |", "|---|---|---|"]
    lines += [f"| {way} | {statistics.mean(v):.4f} | {min(v):.4f} to {max(v):.4f} |" for way, v in found.items()]
    gains = [b - a for a, b in zip(found["alone"], found["distilled"], strict=True)]
    return [*lines, "", f"Gain by seed: {', '.join(f'{gain:+.4f}' for gain in gains)}."]


def spread(values: list[float], write: str) -> str:
    """A mean with its smallest and largest value."""
    shown = [format(value, write) for value in (statistics.mean(values), min(values), max(values))]
    return f"{shown[0]} ({shown[1]} to {shown[2]}, {len(values)} seeds)" if len(values) > 1 else f"{shown[0]} (1 seed)"


def claims(results: list[Result], found: dict[str, list[float]]) -> list[str]:
    """What was to be shown, what was measured, and whether the worst seed holds it (for students: the mean)."""
    size = [one.int8.before.file_nbytes / one.int8.after[0].file_nbytes for one in results]
    lost8 = [100 * (one.int8.before.score.value - one.int8.after[0].score.value) for one in results]
    lost = [100 * (one.half.before.score.value - one.half.after[0].score.value) for one in results]
    peak = [one.half.before.inference_nbytes / one.half.after[0].inference_nbytes for one in results]
    wall, used = ([one.duel[name][0] / one.duel[name][1] for one in results] for name in ("latency_ms", "cpu_ms"))
    gain = [100 * (b - a) for a, b in zip(found["alone"], found["distilled"], strict=True)]
    lines = [
        ("int8: file at least 3.5x smaller", spread(size, ".2f"), min(size) >= 3.5),
        ("int8: at most 1 point lost", spread(lost8, ".2f"), max(lost8) <= 1),
        ("half: inference peak at least 1.5x lower", spread(peak, ".2f"), min(peak) >= 1.5),
        ("half: latency at least 1.5x lower", spread(wall, ".2f"), min(wall) >= 1.5),
        ("half: CPU time at least 1.5x lower", spread(used, ".2f"), min(used) >= 1.5),
        ("half: at most 2 points lost after fine-tuning", spread(lost, ".2f"), max(lost) <= 2),
        ("distilled student better than alone, points", spread(gain, "+.2f"), statistics.mean(gain) > 0),
    ]
    head = ["| claim | measured | holds |", "|---|---|---|"]
    return head + [f"| {claim} | {value} | {'yes' if holds else 'NO'} |" for claim, value, holds in lines]


def main() -> None:
    """Train, shrink, measure, write the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=12000)
    parser.add_argument("--test-rows", type=int, default=10000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--tune-epochs", type=int, default=2)
    parser.add_argument("--student-rows", type=int, default=3000)
    parser.add_argument("--student-epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=5, help="students")
    parser.add_argument("--networks", type=int, default=3, help="seeds of the large network, from 7 on")
    parser.add_argument("--runs", type=int, default=40, help="batches of whole and half in turn, for latency")
    parser.add_argument("--lock", type=Path, help="hold this file's lock while time is measured")
    parser.add_argument("--quick", action="store_true", help="does it run: a minute, numbers without meaning")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/shrink_fashion.md"))
    options = parser.parse_args()
    if options.quick:
        small = {"rows": 640, "test_rows": 512, "epochs": 1, "tune_epochs": 1, "student_rows": 640}
        vars(options).update(small, student_epochs=1, seeds=1, networks=1, runs=5)
    fetch()
    train, test = Rows("train", options.rows, 64), Rows("t10k", options.test_rows, 256)
    found: dict[str, list[float]] = {}
    results = [shrunk(train, test, options, SEED, lambda model: found.update(students(model, test, options)))]
    while True:  # the page is written after every network, so that a run that is cut short leaves what it has found
        options.out.write_text(page(results, found, options))
        if len(results) >= options.networks:
            return
        results.append(shrunk(train, test, options, SEED + len(results)))


def page(results: list[Result], found: dict[str, list[float]], options: argparse.Namespace) -> str:
    """The results as Markdown; tables of single networks show the first seed."""
    import keras

    int8, half = results[0].int8, results[0].half
    text = [
        "# Shrinking a convolution network on Fashion-MNIST", "",
        f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} cores shared with other work, Python "
        f"{platform.python_version()}, Keras {keras.__version__} on {keras.backend.backend()}. {options.rows} "
        f"training rows, {options.epochs} epochs; {options.test_rows} test rows. Peaks are above the loaded framework, "
        "in a child process. Latency and CPU time of the half in the first table: whole and half in turn, in one "
        f"process on one thread, {options.runs} batches of {half.after[0].batch_rows} rows each, medians.", "",
        "## What was to be shown", "", *claims(results, found), "",
        "## int8 (LiteRT, calibrated), seed 7", "", str(int8), "",
        f"## Half of the channels removed, fine-tuned {options.tune_epochs} epochs, seed 7", "", str(half), "",
        "The whole network, trained as many epochs longer: accuracy "
        f"{spread([one.as_long for one in results], '.4f')}.", "",
        f"## Distillation, {options.student_epochs} epochs of {options.student_rows} rows, temperature 2, alpha 0.5",
        "",
        "The teacher is the network of seed 7. Temperature and alpha were chosen on other rows than the test's.", "",
        *lesson(found, options), "",
    ]  # fmt: skip
    return "\n".join(text)


if __name__ == "__main__":
    main()
