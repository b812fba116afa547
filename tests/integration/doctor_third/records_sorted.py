"""Records are sorted in memory once and dropped; afterwards a matrix does not fit, though nothing is held."""

import random

import numpy as np


def sorted_keys(n):
    rnd = random.Random(0)
    records = [rnd.randbytes(rnd.randint(600, 1400)) for _ in range(n)]
    records.sort()
    return [record[:900] for record in records[:: n // 400]]


def features(rows):
    out = np.empty((rows, 1000), dtype=np.float32)
    for i in range(0, rows, 100):
        out[i : i + 100] = i
    return out


def main():
    keys = []
    for part in range(3):
        keys += sorted_keys(250_000)
        print("part", part, len(keys), flush=True)
    matrix = features(60_000)
    print("train on", matrix.shape, float(matrix[::1000].mean()))


if __name__ == "__main__":
    main()
