"""An array is mapped, and a line later copied into memory after all."""

import numpy as np


def open_store(path):
    store = np.load(path, mmap_mode="r")
    return np.ascontiguousarray(store[:, ::-1])


features = open_store("array.npy")
w = np.zeros(features.shape[1])
for start in range(0, len(features), 256):
    batch = features[start : start + 256]
    w -= 1e-6 * batch.T @ (batch @ w - 1.0)
print(float(w.sum()))
