"""Each process of a pool gets the table of embeddings through its initializer."""

import multiprocessing as mp
import time

import numpy as np

_table = None


def init_worker(table):
    global _table
    _table = table


def nearest(i):
    time.sleep(0.05)
    return int(np.argmax([sum(a * b for a, b in zip(_table[i], row)) for row in _table[:50]]))


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    table = [row.tolist() for row in rng.standard_normal((20_000, 100))]
    with mp.get_context("spawn").Pool(4, initializer=init_worker, initargs=(table,)) as pool:
        print(sum(pool.imap_unordered(nearest, range(400), chunksize=4)))
