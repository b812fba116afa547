"""Pictures in class folders into a small Keras network in bfloat16: penstock reads and batches.

python examples/migrate/keras/after.py PHOTOS [EPOCHS]
"""

from __future__ import annotations

import sys
import time

import keras

import penstock as ps


class Clock(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {epoch}: loss {logs['loss']:.3f}, {time.perf_counter() - self.began:.2f} s", flush=True)


def main(folder, epochs):
    keras.utils.set_random_seed(0)
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    batches = ps.read_images(folder, size=(96, 96)).shuffle(seed=0).batch(32).keras()
    model = keras.Sequential([
        keras.layers.Rescaling(1 / 255), keras.layers.Conv2D(8, 5, strides=4, activation="relu"),
        keras.layers.Conv2D(16, 3, strides=2, activation="relu"), keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(2, dtype="float32"),
    ])  # fmt: skip
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(batches, epochs=epochs, verbose=0, callbacks=[Clock()])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3)
