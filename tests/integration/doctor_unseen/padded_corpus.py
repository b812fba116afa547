"""A corpus of short texts has a few very long ones, and all are padded to the longest at once."""

import keras
import numpy as np

rng = np.random.default_rng(3)


def read_corpus(n=20_000):
    lengths = rng.integers(5, 80, n)
    lengths[-1] = 12_000
    return [rng.integers(1, 5_000, int(k)).tolist() for k in lengths]


texts = read_corpus()
labels = rng.integers(0, 2, len(texts))
x_train = keras.utils.pad_sequences(texts, padding="post")
model = keras.Sequential(
    [
        keras.layers.Embedding(5_000, 8),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile("adam", "binary_crossentropy")
model.fit(x_train, labels, batch_size=8, epochs=1)
