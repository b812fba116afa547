"""The child process that runs two Keras files in turn: `python -m benchmarks.shrink_duel A.keras B.keras x.npy RUNS`.

Covers: the wall time and CPU time of a batch for both, run by run, so that other work on the machine meets both alike.
Does not cover: peak memory, which needs a process for each file (penstock/compress/child/measure.py).
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import keras
import numpy as np


def main(first: str, second: str, inputs: str, runs: int) -> None:
    """Print medians over the runs, in milliseconds, as JSON."""
    x, models = np.load(inputs), [keras.models.load_model(path, compile=False) for path in (first, second)]
    wall: list[list[float]] = [[], []]
    used: list[list[float]] = [[], []]
    for number in range(-3, runs):  # three to warm up
        for turn in (0, 1) if number % 2 else (1, 0):
            began, spent = time.perf_counter(), time.process_time()
            np.asarray(models[turn].predict_on_batch(x))
            if number >= 0:
                wall[turn].append(1e3 * (time.perf_counter() - began))
                used[turn].append(1e3 * (time.process_time() - spent))
    print(json.dumps({"latency_ms": [*map(statistics.median, wall)], "cpu_ms": [*map(statistics.median, used)]}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
