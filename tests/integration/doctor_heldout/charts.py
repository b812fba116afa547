"""A callback draws the weights after each round, with a figure of its own each time."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np


def draw(weights, number):
    figure, axes = plt.subplots(2, 2, figsize=(12, 9), dpi=110)
    for place, axis in enumerate(axes.flat):
        axis.imshow(weights * (place + 1))
    figure.savefig(f"weights-{number % 3}.png")


weights = np.random.default_rng(0).standard_normal((400, 400))
for number in range(120):
    weights *= 0.999
    draw(weights, number)
print("drawn", number + 1)
