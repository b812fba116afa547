"""Threads share the list."""

import time

from joblib import Parallel, delayed


def work(rows, seed):
    time.sleep(0.1)
    return len(rows) + seed


if __name__ == "__main__":
    rows = [float(i) for i in range(3_000_000)]
    print("sum", sum(Parallel(n_jobs=2, prefer="threads")(delayed(work)(rows, seed) for seed in range(6))))
