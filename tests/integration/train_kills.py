"""Workers of `penstock train` that are killed with SIGKILL at random moments, and one that nobody disturbs.

python train_kills.py DATA FOLDER KILLS: the framework is imported once and every worker is a fork of that process, so
that twenty kills cost seconds of training and not twenty imports. Prints one line of JSON.

The model keeps a ledger: a weight that counts, for each row of the data, how often it was trained on. It is saved and
restored with the others, so at the end it tells whether a row was lost or came twice on any of the ways to the end.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import keras
from keras import ops

from penstock.train.config import Config, check, write_config
from penstock.train.keras import job as keras_job
from penstock.train.keras import models as keras_models  # noqa: F401
from penstock.watch.run_folder import read_events

MOMENTS = {"guard.saved": 12, "train.begin": 3, "run.start": 2, "train.epoch": 3}


EPOCHS = 12
ROWS = "TRAIN_KILLS_ROWS"


class Ledger(keras.layers.Layer):
    """Counts rows by their number, which is the first column, scaled as the recipe scales it."""

    def __init__(self, rows: int, **named: Any) -> None:
        super().__init__(**named)
        self.rows = rows

    def build(self, shape: Any) -> None:
        self.seen = self.add_weight(shape=(self.rows,), initializer="zeros", trainable=False, name="ledger")

    def call(self, numbers: Any, training: bool = False) -> Any:
        if training:
            mean, std = (self.rows - 1) / 2, math.sqrt((self.rows**2 - 1) / 12)
            row = ops.cast(ops.round(numbers[:, 0] * std + mean), "int32")
            self.seen.assign(self.seen + ops.sum(ops.one_hot(row, self.rows), axis=0))
        return numbers[:, 1:]


def build(inputs: dict[str, Any], outputs: int) -> keras.Model:
    """The model of these runs, as `penstock train --model train_kills.py:build` asks for it."""
    entries = {name: keras.Input(spec.shape, dtype=spec.dtype, name=name) for name, spec in inputs.items()}
    numbers = Ledger(int(os.environ[ROWS]), name="ledger")(entries["numbers"])
    kinds = keras.layers.Embedding(inputs["categories"].sizes[0], 4)(entries["categories"][:, 0])
    hidden = keras.layers.Dense(32, activation="relu")(keras.layers.Concatenate()([numbers, kinds]))
    return keras.Model(entries, keras.layers.Dense(outputs)(keras.layers.Dropout(0.2)(hidden)))


def begin(folder: Path) -> int:
    """A worker in a process of its own."""
    pid = os.fork()
    if pid:
        return pid
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os._exit(keras_job.main(folder))


def finish(folder: Path) -> float:
    """Let a worker end by itself; returns the seconds from its first step to its last."""
    _, status = os.waitpid(begin(folder), 0)
    if status:
        raise SystemExit(f"the worker ended with {status}: {(folder / 'log.txt').read_text()[-2000:]}")
    times = {event["kind"]: float(event["t"]) for event in read_events(folder)}
    return times["train.end"] - times["train.begin"]


def count(folder: Path, kind: str) -> int:
    return sum(1 for event in read_events(folder) if event["kind"] == kind)


def kill_at(folder: Path, kind: str, later_s: float) -> tuple[str, bool]:
    """Kill a worker some time after an event of its own; returns what it did last and whether it was still alive."""
    seen = count(folder, kind)
    pid = begin(folder)
    ended = False
    while not ended and count(folder, kind) == seen:
        time.sleep(0.005)
        ended = os.waitpid(pid, os.WNOHANG) != (0, 0)
    time.sleep(later_s)
    if not ended:
        os.kill(pid, signal.SIGKILL)
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != -signal.SIGKILL
    last = [event["kind"] for event in read_events(folder)][-1]
    return last, not ended


def main(data: str, folder: str, kills: int) -> None:
    os.environ[ROWS] = str(len(Path(data).read_text().splitlines()) - 1)
    rng = random.Random(5)
    whole, killed = Path(folder, "whole"), Path(folder, "killed")
    config = check(
        Config(data=data, target="label", batch=32, epochs=EPOCHS, backend=os.environ["KERAS_BACKEND"], seed=3, val=0.0,
               model=f"{Path(__file__).resolve()}:build", checkpoint_minutes=0.002, forecast=False)
    )  # fmt: skip
    for run in (whole, killed):
        write_config(run, config)
    trained_s = finish(whole)
    found = []
    for kind in rng.choices(list(MOMENTS), list(MOMENTS.values()), k=kills):
        found.append((kind, *kill_at(killed, kind, rng.uniform(0, trained_s / (2 * kills)))))
    finished = (killed / "metrics.json").exists()
    finish(killed)
    told = {"kills": found, "too_late": finished, "trained_s": trained_s, "epochs": EPOCHS}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
