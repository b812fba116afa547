"""Each worker of an executor is handed the whole matrix when it starts."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np

matrix = None


def begin(values):
    global matrix
    matrix = values


def score(row):
    return float(matrix[row].sum())


if __name__ == "__main__":
    values = np.random.default_rng(0).standard_normal((10_000, 1_000))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(6, mp_context=context, initializer=begin, initargs=(values,)) as pool:
        print("total", sum(pool.map(score, range(2_000), chunksize=10)))
