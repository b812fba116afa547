"""A batch at a time, reduced at once."""

import keras
import numpy as np

model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(20_000)])
rows = 0
for _ in range(200):
    rows += int(model.predict_on_batch(np.zeros((64, 8), np.float32)).argmax(-1).size)
print("rows", rows)
