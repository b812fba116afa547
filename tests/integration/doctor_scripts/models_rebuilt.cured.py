"""Trials run in processes of their own, eight in each; only scores come back."""

import subprocess
import sys


def trials(count):
    import keras
    import numpy as np

    x, y = np.zeros((64, 1_000), np.float32), np.zeros(64, np.float32)
    for _ in range(count):
        model = keras.Sequential([keras.layers.Input((1_000,)), keras.layers.Dense(3_000), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        print(model.fit(x, y, verbose=0).history["loss"][-1])


if len(sys.argv) > 1:
    trials(int(sys.argv[1]))
else:
    for _ in range(2):
        print(subprocess.run([sys.executable, __file__, "8"], check=True, capture_output=True, text=True).stdout)
