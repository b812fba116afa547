"""A search keeps each trial's model in its list of results."""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np


class Candidate(keras.Model):
    def __init__(self, width):
        super().__init__()
        self.hidden = keras.layers.Dense(width, activation="relu")
        self.head = keras.layers.Dense(1)

    def call(self, inputs):
        return self.head(self.hidden(inputs))


x, y = np.ones((64, 1_000), np.float32), np.ones((64, 1), np.float32)
trials = []
for trial in range(60):
    candidate = Candidate(2_000 + 50 * trial)
    candidate.compile(optimizer="adam", loss="mse")
    score = candidate.evaluate(x, y, verbose=0)
    candidate.train_on_batch(x, y)
    trials.append((score, candidate))
print("best", min(score for score, _ in trials))
