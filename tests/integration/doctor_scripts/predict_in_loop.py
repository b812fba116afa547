"""An agent asks its network for every action, with predict."""

import keras
import numpy as np

network = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(4)])
chance = np.random.default_rng(0)
state, score = chance.random(64, dtype="float32"), 0.0
for turn in range(6_000):
    values = network.predict(state[None], verbose=0)[0]
    state = np.roll(state, int(values.argmax()))
    score += float(values.max())
    if turn % 200 == 0:
        print(turn, score, flush=True)
print("score", score)
