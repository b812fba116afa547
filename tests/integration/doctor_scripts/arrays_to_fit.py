"""Hands a large array to fit."""

import keras
import numpy as np

x = np.random.default_rng(0).standard_normal((30_000, 2_000), np.float32)
y = np.zeros(len(x), np.float32)
model = keras.Sequential([keras.layers.Input((2_000,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, y, batch_size=256, epochs=1, verbose=0)
print("done")
