"""A new pool in every epoch; nobody closes the old ones."""

import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np


def work(seed):
    global held
    held = np.full(3_000_000, seed, np.float64)
    return float(held.sum())


if __name__ == "__main__":
    kept = []
    for epoch in range(12):
        pool = ProcessPoolExecutor(2)
        kept.append(pool)
        print("epoch", epoch, sum(pool.map(work, range(8))))
        time.sleep(0.3)
