"""A mapped array."""

import numpy as np

np.save("mapped.npy", np.ones((1_000, 100)))
data = np.load("mapped.npy", mmap_mode="r")
print("mean", float(np.mean([data[i : i + 100].mean() for i in range(0, 1_000, 100)])))
