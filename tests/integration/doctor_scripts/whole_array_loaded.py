"""Reads a whole array file, a batch of which is used at a time."""

import numpy as np

data = np.load("array.npy")  # the comment stays
total = 0.0
for start in range(0, 20_000, 1_000):
    total += float(data[start : start + 1_000].mean())
print("mean", total)
