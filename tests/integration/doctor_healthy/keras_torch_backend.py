"""Keras on torch, with a bounded cache."""

import functools
import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np


@functools.lru_cache(maxsize=8)
def load(place):
    return np.ones((32, 4), np.float32) * place


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 20

    def __getitem__(self, place):
        return load(place), np.ones(32, np.float32)


model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(Batches(), epochs=1, verbose=0)
print("done", len(model.predict(Batches(), verbose=0)))
