"""A model per trial, in one process."""

import keras
import numpy as np


def build():
    model = keras.Sequential([keras.layers.Input((1_000,)), keras.layers.Dense(3_000), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


trials = []
x, y = np.zeros((64, 1_000), np.float32), np.zeros(64, np.float32)
for trial in range(16):
    model = build()
    model.fit(x, y, verbose=0)
    trials.append(model)
print("trials", len(trials))
