"""What the guard costs when nothing happens: guarded training against plain training on the same batches.

Run: python -m benchmarks.guard_overhead [CASE ...] [--seconds N] [--dry]    default: all cases, 70 s each, 8 minutes
Each case runs in a process of its own and prints its numbers; results/guard_overhead.json and .md are written after
each one unless --dry is given. Cases that are not named keep their numbers and date.
Covers: a plain torch loop (whole and in four micro-batches), and `model.fit` on Keras' three backends.
Does not cover: batches that do not fit.

Both sides live in one process and take short turns. A round is plain, guarded, guarded, plain: what drifts evenly
meets both alike. Told is the mean of the middle half of the rounds (a burst of other load costs a round, not the
result) and its 95 % bootstrap interval, of wall time and of CPU time of the process. The process is bound to one core:
frameworks then run one thread each, and which core a thread finds warm is no part of what is measured. glibc is told
to keep what is freed, in one arena. By itself it moves its thresholds and gives each thread an arena: one side then
fetched its pages anew at every step and the other did not, by luck, and the same code was level or 1.5 times slower.
(Each alone in a process, Keras on torch faulted no more with the guard than without.)

Two things are measured, half of the time each:
- the ratio of whole steps. On a machine whose speed swings, its interval is wider than the cost itself.
- the cost in microseconds, on the same network behind a pooling of 8x8: the same batch, weights, number of operations
  and optimizer, 1/64 of the arithmetic. All that the guard does is done there too, and a short step shows it. Added to
  the plain whole step it is the ratio again, this time with an interval that can decide.

A turn of torch is one step. A turn of Keras is one epoch of a few steps of a single long fit(), from its first batch to
its metrics as numbers; two threads hand each other the right to run. `model.fit` gets its batches ready-made through
the quickest adapter that Keras has, so that what is compared is the step.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]  # so that it also runs as a file

from benchmarks.report import machine  # noqa: E402

BATCH, WARM_S, SECONDS = 64, 2.0, 70.0
CASES = ("torch", "torch-split", "keras-torch", "keras-tensorflow", "keras-jax")
RESULTS = ROOT / "benchmarks/results/guard_overhead.json"
TARGET = 1.02
KEEP = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 33)}
"""Freed memory stays with the process, for both sides."""
PLAIN, GUARDED = 0, 1
ROUND = (PLAIN, GUARDED, GUARDED, PLAIN)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(BATCH, 32, 32, 3)).astype(np.float32)
Y = RNG.integers(0, 10, BATCH)


@dataclass(frozen=True)
class Work:
    """The network, whole or behind a pooling, and how many steps an epoch of Keras has."""

    pooling: int
    epoch_steps: int


WHOLE, LIGHT = Work(1, 2), Work(8, 8)


@dataclass
class Clock:
    """The turns in the order of rounds, until the time is up; only whole rounds count, and none while warming up."""

    seconds: float
    turns: list[tuple[float, float]] = field(default_factory=list)
    """Wall and CPU seconds of each turn."""
    _start_s: float = 0.0
    _warm: bool = False

    @property
    def whose(self) -> int:
        """Whose turn it is."""
        return ROUND[len(self.turns) % len(ROUND)]

    @property
    def over(self) -> bool:
        """Whether the last round is complete and the time is up."""
        return self._warm and not len(self.turns) % len(ROUND) and time.perf_counter() > self._start_s + self.seconds

    def begin(self) -> None:
        """A turn begins."""
        self._began = time.perf_counter(), time.process_time()
        self._start_s = self._start_s or self._began[0]

    def end(self) -> None:
        """A turn ends, and is the first of those that count once everything is compiled and warm."""
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        self.turns.append((wall_s - self._began[0], cpu_s - self._began[1]))
        if not self._warm and not len(self.turns) % len(ROUND) and wall_s > self._start_s + min(WARM_S, self.seconds):
            self._warm, self._start_s = True, wall_s
            self.turns.clear()


def torch_turns(work: Work, parts: int, clock: Clock) -> None:
    """A plain loop, with as many micro-batches, and the guard; each step is a turn."""
    import torch

    from penstock.guard import Guard

    x, y = np.ascontiguousarray(X.transpose(0, 3, 1, 2)), Y
    rows = BATCH // parts
    loss_fn = torch.nn.CrossEntropyLoss()

    def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        layers: list[torch.nn.Module] = [torch.nn.AvgPool2d(work.pooling)] if work.pooling > 1 else []
        for inputs in (3, 16, 16, 16):
            layers += [torch.nn.Conv2d(inputs, 16, 3, padding=1), torch.nn.ReLU()]
        model = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, 10))
        return model, torch.optim.AdamW(model.parameters(), fused=True)

    model, optimizer = make()

    def plain() -> None:
        optimizer.zero_grad()
        for start in range(0, BATCH, rows):
            cut = slice(start, start + rows)
            loss = loss_fn(model(torch.from_numpy(x[cut])), torch.from_numpy(y[cut]))
            (loss / parts).backward()
        optimizer.step()

    guard = Guard(*make(), micro_batch=rows)
    guard.step((x, y), loss_fn)
    if parts > 1:  # it must not grow back to whole batches while it is measured
        state = guard.state_dict()
        state["ladder"] |= {"failed": rows + 1, "patience": 1 << 40}
        guard.load_state_dict(state)

    sides: tuple[Callable[[], Any], ...] = plain, lambda: guard.step((x, y), loss_fn)
    while not clock.over:
        turn = sides[clock.whose]
        clock.begin()
        turn()
        clock.end()
    if guard.micro_batch != rows:
        raise SystemExit(f"the guard took {guard.micro_batch} rows at once, not {rows}: the sides are not alike")


def keras_turns(work: Work, clock: Clock) -> None:
    """model.fit, and guarded fit, each in a thread; each epoch is a turn."""
    import keras

    from penstock.guard import fit

    batons = [threading.Semaphore(0), threading.Semaphore(0)]

    class Alternate(keras.callbacks.Callback):  # type: ignore[misc]
        """Waits for its turn, times an epoch, hands over."""

        def __init__(self, which: int) -> None:
            super().__init__()
            self.which = which

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            batons[self.which].acquire()

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 0 and not clock.over:
                clock.begin()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if not clock.over:
                clock.end()
            if clock.over:  # the other side is let through its last epoch, which does not count
                self.model.stop_training = True
                batons[1 - self.which].release()
            else:
                batons[clock.whose].release()

    def make() -> keras.Model:
        layers = [keras.Input((32, 32, 3))]
        layers += [keras.layers.AveragePooling2D(work.pooling)] if work.pooling > 1 else []
        layers += [keras.layers.Conv2D(16, 3, padding="same", activation="relu") for _ in range(4)]
        model = keras.Sequential([*layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)])
        model.compile("adamw", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    models, epochs, steps = (make(), make()), 1_000_000, work.epoch_steps
    threads = [
        threading.Thread(
            target=lambda: models[0].fit(ready(steps), epochs=epochs, verbose=0, callbacks=[Alternate(PLAIN)])
        ),
        threading.Thread(
            target=lambda: fit(models[1], [(X, Y)] * steps, epochs=epochs, callbacks=[Alternate(GUARDED)])
        ),
    ]
    for thread in threads:
        thread.start()
    batons[PLAIN].release()
    for thread in threads:
        thread.join()


def ready(steps: int) -> Any:
    """The same batches for model.fit, ready-made: nothing is sliced, copied or shuffled on the way."""
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter

    class Ready(DataAdapter):  # type: ignore[misc]
        num_batches, batch_size, has_partial_batch, partial_batch_size = steps, BATCH, False, None

        def get_numpy_iterator(self) -> Any:
            return iter([(X, Y)] * steps)

        get_jax_iterator = get_numpy_iterator

        def get_tf_dataset(self) -> Any:
            import tensorflow as tf

            return tf.data.Dataset.from_tensors((X, Y)).repeat(steps)

        def get_torch_dataloader(self) -> Any:
            import torch

            return [(torch.from_numpy(X), torch.from_numpy(Y))] * steps

    return Ready()


def middle(values: np.ndarray) -> Any:
    """The mean of the middle half along the last axis: as steady as a mean, as calm about outliers as a median."""
    cut = values.shape[-1] // 4
    return np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut].mean(axis=-1)


def interval(values: np.ndarray) -> tuple[float, float]:
    """A 95 % bootstrap interval of the middle mean."""
    picks = np.random.default_rng(0).integers(0, len(values), (4000, len(values)))
    low, high = np.percentile(middle(values[picks]), [2.5, 97.5])
    return float(low), float(high)


def rounds_of(case: str, work: Work, seconds: float) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of a plain and of a guarded step in each round, as arrays of (rounds, wall and CPU)."""
    clock, keras = Clock(seconds), case.startswith("keras")
    if keras:
        keras_turns(work, clock)
    else:
        torch_turns(work, 4 if case == "torch-split" else 1, clock)
    turns, sides = np.reshape(clock.turns, (-1, len(ROUND), 2)), np.array(ROUND)
    steps = work.epoch_steps if keras else 1
    return turns[:, sides == PLAIN].mean(axis=1) / steps, turns[:, sides == GUARDED].mean(axis=1) / steps


def measure(case: str, seconds: float) -> dict[str, Any]:
    """The ratio of whole steps and the cost in microseconds of one case, in this process."""
    plain, guarded = rounds_of(case, WHOLE, seconds / 2)
    light_plain, light_guarded = rounds_of(case, LIGHT, seconds / 2)
    load = round(os.getloadavg()[0], 1)
    found: dict[str, Any] = {"case": case, "rounds": len(plain), "light_rounds": len(light_plain), "load": load}
    for which, name in enumerate(("wall", "cpu")):
        ratios, step_s = guarded[:, which] / plain[:, which], float(middle(plain[:, which]))
        extra_s = light_guarded[:, which] - light_plain[:, which]
        cost_s, ends_s = float(middle(extra_s)), interval(extra_s)
        found[name] = {
            "plain_step_ms": round(1e3 * step_s, 3),
            "light_step_ms": round(1e3 * float(middle(light_plain[:, which])), 3),
            "ratio": round(float(middle(ratios)), 4),
            "interval": [round(end, 4) for end in interval(ratios)],
            "cost_us": round(1e6 * cost_s),
            "cost_interval_us": [round(1e6 * end) for end in ends_s],
            "cost_ratio": round(1 + cost_s / step_s, 4),
            "cost_ratio_interval": [round(1 + end / step_s, 4) for end in ends_s],
        }
    return found


def in_child(case: str, seconds: float) -> dict[str, Any]:
    """Measure one case in a process of its own."""
    backend = case.removeprefix("keras-") if case.startswith("keras") else "torch"
    env = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", **KEEP}
    command = [sys.executable, "-W", "ignore", __file__, case, "--seconds", str(seconds), "--here"]
    done = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{case} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    found["date"] = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    print(json.dumps(found), flush=True)
    return found


def verdict(ends: list[float]) -> str:
    """Whether the target is met by the whole interval, missed by it, or neither."""
    low, high = ends
    if high <= TARGET:
        return "met"
    return "missed" if low > TARGET else "not decided"


def page(rows: list[dict[str, Any]], where: dict[str, Any]) -> str:
    """The results for people."""
    lines = []
    for row in rows:
        for name, shown in (("cpu", row["case"]), ("wall", "")):
            found = row[name]
            cells = [shown, name, f"{found['plain_step_ms']:.1f}"]
            cells += [_with_ends(found["cost_us"], found["cost_interval_us"], ".0f")]
            for key, ends in (("cost_ratio", "cost_ratio_interval"), ("ratio", "interval")):
                cells += [_with_ends(found[key], found[ends], ".3f"), verdict(found[ends])]
            cells += [f"{row['rounds']}, {row['light_rounds']}", str(row["load"]), row["date"]] if shown else [""] * 3
            lines.append("| " + " | ".join(cells) + " |")
    return (
        "# What the guard costs when nothing happens\n\n"
        "Guarded steps against plain ones (a torch loop; `model.fit`), same batches, same process, one core, an "
        "allocator that keeps what is freed (else page faults, by luck on one side, decide), by turns, in rounds of "
        "plain, guarded, guarded, plain: the mean of the middle half of the rounds and its 95 % bootstrap "
        f"interval. The aim is at most {TARGET}. Four convolutions of 16 channels, batch {BATCH} of 32x32 images, "
        "AdamW; `torch-split` is four micro-batches on both sides. The cost in microseconds is measured on the same "
        "network behind a pooling of 8x8 (same batch, weights and operations, 1/64 of the arithmetic), where a short "
        "step shows it; step + cost is what it makes of the whole step. The ratio of whole steps is measured directly, "
        f'and the machine\'s noise is in it. {where["cores"]} cores, {where["cpu"]}. "met": the whole interval is '
        "within the aim. Under load, CPU time says more than wall time. Written by `benchmarks/guard_overhead.py`.\n\n"
        "| case | time | plain step, ms | cost, us | (step + cost) / step | | whole steps, guarded / plain | | "
        "rounds (whole, cost) | load | date |\n|---|---|---|---|---|---|---|---|---|---|---|\n"
    ) + "\n".join([*lines, ""])


def _with_ends(value: float, ends: list[float], how: str) -> str:
    return f"{value:{how}} ({ends[0]:{how}} to {ends[1]:{how}})"


def main(cases: list[str], seconds: float, *, dry: bool) -> None:
    """Measure case by case, and write the page after each. Rows of an earlier form of this benchmark are dropped."""
    rows = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    rows = [row for row in rows if "cost_us" in row["cpu"]]
    for case in cases:
        found = in_child(case, seconds)
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
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="turns per case, in seconds (default %(default)s)"
    )
    parser.add_argument("--dry", action="store_true", help="print the numbers; write no results")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    found = parser.parse_args()
    wrong = sorted(set(found.cases) - set(CASES))
    if wrong or found.seconds < 1:
        parser.error(f"no such case: {', '.join(wrong)}" if wrong else "--seconds must be at least 1")
    return found


def bind_to_one_core() -> None:
    """The last core that this process may use: the first ones serve interrupts."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


if __name__ == "__main__":
    asked = options()
    if asked.here:  # the process of one case
        bind_to_one_core()
        print(json.dumps(measure(asked.cases[0], asked.seconds)))
    else:
        main(asked.cases or list(CASES), asked.seconds, dry=asked.dry)
