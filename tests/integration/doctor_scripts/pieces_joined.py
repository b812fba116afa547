"""Collects pieces and joins them."""

import time

import numpy as np

pieces = []
for turn in range(40):
    pieces.append(np.full(1_000_000, turn, np.float32))
    time.sleep(0.03)
data = np.concatenate(pieces)
time.sleep(0.2)
again = np.concatenate([data, data])
print("mean", float(again.mean()))
