"""What the guard costs when nothing happens: guarded training against plain training on the same batches.

Run: python -m benchmarks.guard_overhead [CASE ...] [--rounds N] [--dry]      default: all cases, 24 rounds
Each case runs in a process of its own and prints its numbers; results/guard_overhead.json and .md are written after
each one unless --dry is given. Cases that are not named keep their numbers and date.
Covers: a plain torch loop (whole and in four micro-batches), and `model.fit` on Keras' three backends.
Does not cover: batches that do not fit.

Both sides live in one process and take short turns, plain, guarded, plain, guarded, ..., so that other load meets
both. A turn of Keras is one epoch of a single long fit(), from its first batch to its metrics as numbers; two threads
hand each other the right to run. `model.fit` gets its batches ready-made through the quickest adapter that Keras has,
so that what is compared is the step. A round's ratio is a guarded turn over the mean of the plain turns before and
after it; told are the median over the rounds and a 95 % bootstrap interval of that median, of wall time and of CPU time
of the process.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]  # so that it also runs as a file

from benchmarks.report import machine  # noqa: E402

BATCH, STEPS, WARM, ROUNDS = 128, 4, 4, 24
CASES = ("torch", "torch-split", "keras-torch", "keras-tensorflow", "keras-jax")
RESULTS = ROOT / "benchmarks/results/guard_overhead.json"
TARGET = 1.02
RNG = np.random.default_rng(0)
X = RNG.normal(size=(BATCH, 32, 32, 3)).astype(np.float32)
Y = RNG.integers(0, 10, BATCH)

Turn = tuple[float, float]
"""Wall and CPU seconds of one turn."""


def timed(work: Callable[[], Any]) -> Turn:
    """One turn's wall and CPU time."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def torch_turns(parts: int) -> Iterator[Turn]:
    """A plain loop, with as many micro-batches, and the guard, by turns."""
    import torch

    from penstock.guard import Guard

    torch.set_num_threads(1)
    x = np.ascontiguousarray(X.transpose(0, 3, 1, 2))

    def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        layers: list[torch.nn.Module] = []
        for inputs in (3, 16, 16, 16):
            layers += [torch.nn.Conv2d(inputs, 16, 3, padding=1), torch.nn.ReLU()]
        model = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, 10))
        return model, torch.optim.AdamW(model.parameters(), fused=True)

    model, optimizer = make()
    loss_fn = torch.nn.CrossEntropyLoss()
    rows = BATCH // parts

    def plain() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            for start in range(0, BATCH, rows):
                cut = slice(start, start + rows)
                loss = loss_fn(model(torch.from_numpy(x[cut])), torch.from_numpy(Y[cut]))
                (loss / parts).backward()
            optimizer.step()

    guard = Guard(*make(), micro_batch=rows)
    guard.step((x, Y), loss_fn)
    if parts > 1:  # it must not grow back to whole batches while it is measured
        state = guard.state_dict()
        state["ladder"] |= {"failed": rows + 1}
        guard.load_state_dict(state)

    def guarded() -> None:
        for _ in range(STEPS):
            guard.step((x, Y), loss_fn)

    while True:
        yield timed(plain)
        yield timed(guarded)


def keras_turns(rounds: int) -> Iterator[Turn]:
    """model.fit, and guarded fit, each in a thread; each epoch is a turn."""
    import keras

    from penstock.guard import fit

    batons = [threading.Semaphore(0), threading.Semaphore(0)]
    turns: list[Turn] = []

    class Alternate(keras.callbacks.Callback):  # type: ignore[misc]
        """Waits for its turn, times an epoch, hands over."""

        def __init__(self, which: int) -> None:
            super().__init__()
            self.which = which

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            batons[self.which].acquire()

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 0:
                self.start = time.perf_counter(), time.process_time()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            now = time.perf_counter(), time.process_time()
            turns.append((now[0] - self.start[0], now[1] - self.start[1]))
            batons[1 - self.which].release()

    def make() -> keras.Model:
        layers = [keras.Input((32, 32, 3))]
        layers += [keras.layers.Conv2D(16, 3, padding="same", activation="relu") for _ in range(4)]
        model = keras.Sequential([*layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)])
        model.compile("adamw", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    models = make(), make()
    threads = [
        threading.Thread(target=lambda: models[0].fit(ready(), epochs=rounds, verbose=0, callbacks=[Alternate(0)])),
        threading.Thread(target=lambda: fit(models[1], [(X, Y)] * STEPS, epochs=rounds, callbacks=[Alternate(1)])),
    ]
    for thread in threads:
        thread.start()
    batons[0].release()
    for thread in threads:
        thread.join()
    yield from turns


def ready() -> Any:
    """The same batches for model.fit, ready-made: nothing is sliced, copied or shuffled on the way."""
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter

    class Ready(DataAdapter):  # type: ignore[misc]
        num_batches, batch_size, has_partial_batch, partial_batch_size = STEPS, BATCH, False, None

        def get_numpy_iterator(self) -> Any:
            return iter([(X, Y)] * STEPS)

        get_jax_iterator = get_numpy_iterator

        def get_tf_dataset(self) -> Any:
            import tensorflow as tf

            return tf.data.Dataset.from_tensors((X, Y)).repeat(STEPS)

        def get_torch_dataloader(self) -> Any:
            import torch

            return [(torch.from_numpy(X), torch.from_numpy(Y))] * STEPS

    return Ready()


def ratios(turns: list[Turn], which: int) -> list[float]:
    """Each guarded turn over the mean of the plain ones around it. Turns are plain, guarded, ..., plain."""
    times = [turn[which] for turn in turns]
    return [2 * times[i] / (times[i - 1] + times[i + 1]) for i in range(1, len(times) - 1, 2)]


def interval(values: list[float]) -> tuple[float, float]:
    """A 95 % bootstrap interval of the median."""
    picks = np.random.default_rng(0).integers(0, len(values), (4000, len(values)))
    low, high = np.percentile(np.median(np.asarray(values)[picks], axis=1), [2.5, 97.5])
    return round(float(low), 4), round(float(high), 4)


def measure(case: str, rounds: int) -> dict[str, Any]:
    """The median ratios of one case, in this process."""
    count = 2 * (rounds + WARM) + 1
    if case.startswith("keras"):
        turns = list(keras_turns(rounds + WARM + 1))[:count]
    else:
        turns = list(itertools.islice(torch_turns(4 if case == "torch-split" else 1), count))
    turns = turns[2 * WARM :]
    plain, guarded = turns[0::2], turns[1::2]
    found: dict[str, Any] = {"case": case, "rounds": rounds, "steps": STEPS, "load": round(os.getloadavg()[0], 1)}
    for name, which in (("wall", 0), ("cpu", 1)):
        every = ratios(turns, which)
        plain_s = statistics.median(turn[which] for turn in plain) / STEPS
        extra_s = statistics.median(turn[which] for turn in guarded) / STEPS - plain_s
        found[name] = {
            "ratio": round(statistics.median(every), 4),
            "interval": interval(every),
            "plain_step_ms": round(1000 * plain_s, 3),
            "extra_us": round(1e6 * extra_s),
        }
    return found


def in_child(case: str, rounds: int) -> dict[str, Any]:
    """Measure one case in a process of its own."""
    backend = case.removeprefix("keras-") if case.startswith("keras") else "torch"
    env = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-W", "ignore", __file__, case, "--rounds", str(rounds), "--here"]
    done = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{case} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    found["date"] = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    print(json.dumps(found), flush=True)
    return found


def verdict(found: dict[str, Any]) -> str:
    """Whether the target is met: by the whole interval, by the median alone, or not."""
    low, high = found["interval"]
    if high <= TARGET:
        return "met"
    return "missed" if low > TARGET else "not decided"


def page(rows: list[dict[str, Any]], where: dict[str, Any]) -> str:
    """The results for people."""
    lines = []
    for row in rows:
        wall, cpu = row["wall"], row["cpu"]
        cells = [row["case"], f"{cpu['plain_step_ms']:.1f}"]
        for found in (cpu, wall):
            low, high = found["interval"]
            cells += [f"{found['ratio']:.3f} ({low:.3f} to {high:.3f})", verdict(found)]
        cells += [str(cpu["extra_us"]), str(row["rounds"]), str(row["load"]), row["date"]]
        lines.append("| " + " | ".join(cells) + " |")
    return (
        "# What the guard costs when nothing happens\n\n"
        "Guarded steps over plain ones (a torch loop; `model.fit`), same batches, same process, by turns of "
        f"{STEPS} steps: median of the paired ratios and its 95 % bootstrap interval. The aim is at most {TARGET}. "
        f"Four convolutions of 16 channels, batch {BATCH} of 32x32 images, AdamW; `torch-split` is four micro-batches "
        "on both sides. "
        f'{where["cores"]} cores, {where["cpu"]}. "met": the whole interval is within the aim. Under load, CPU time '
        "says more than wall time. Written by `benchmarks/guard_overhead.py`.\n\n"
        "| case | plain step, CPU ms | CPU time, guarded / plain | | wall time, guarded / plain | | "
        "CPU us more a step | rounds | load | date |\n|---|---|---|---|---|---|---|---|---|---|\n"
    ) + "\n".join([*lines, ""])


def main(cases: list[str], rounds: int, *, dry: bool) -> None:
    """Measure case by case, and write the page after each."""
    rows = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    for case in cases:
        found = in_child(case, rounds)
        if dry:
            continue
        rows = sorted([row for row in rows if row["case"] != case] + [found], key=lambda row: CASES.index(row["case"]))
        where = machine()
        RESULTS.write_text(json.dumps({"machine": where, "rows": rows}, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(page(rows, where))


def options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description="What the guard costs when nothing happens.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: all of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="pairs of turns per case (default %(default)s)")
    parser.add_argument("--dry", action="store_true", help="print the numbers; write no results")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    found = parser.parse_args()
    wrong = sorted(set(found.cases) - set(CASES))
    if wrong or found.rounds < 1:
        parser.error(f"no such case: {', '.join(wrong)}" if wrong else "--rounds must be at least 1")
    return found


if __name__ == "__main__":
    asked = options()
    if asked.here:  # the process of one case
        print(json.dumps(measure(asked.cases[0], asked.rounds)))
    else:
        main(asked.cases or list(CASES), asked.rounds, dry=asked.dry)
