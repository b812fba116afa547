"""A Keras callback draws activations after each epoch."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt


class Drawer(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        weights = keras.ops.convert_to_numpy(self.model.layers[0].kernel)
        _, axes = plt.subplots(4, 4, figsize=(12, 12))
        for ax, column in zip(axes.flat, weights.T, strict=False):
            ax.imshow(np.tile(column[:, None], (20, 600)))
        plt.suptitle(f"epoch {epoch}")
        plt.savefig("curves.png", dpi=30)


model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(32), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x, y = np.random.rand(256, 64).astype("float32"), np.random.rand(256, 1).astype("float32")
model.fit(x, y, epochs=200, verbose=2, callbacks=[Drawer()])
