"""A figure per step, never closed."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

for step in range(60):
    figure = plt.figure(figsize=(12, 12))
    plt.imshow(np.random.default_rng(step).random((1_000, 1_000)))
    figure.canvas.draw()
print("figures", step)
