"""Each fold builds a network, and what fit returned is kept: it refers to the network."""

import keras
import numpy as np
from sklearn.model_selection import RepeatedKFold

X = np.random.default_rng(0).random((600, 200)).astype("float32")
y = X.sum(1)


def get_model(units):
    inp = keras.Input((200,))
    h = keras.layers.Dense(units, activation="relu")(inp)
    h = keras.layers.Dense(units, activation="relu")(h)
    out = keras.layers.Dense(1)(h)
    m = keras.Model(inp, out)
    m.compile(optimizer="adam", loss="mse")
    return m


cv = RepeatedKFold(n_splits=5, n_repeats=20, random_state=1)
histories = []
for fold, (tr, va) in enumerate(cv.split(X)):
    model = get_model(2000)
    h = model.fit(X[tr], y[tr], epochs=1, batch_size=120, validation_data=(X[va], y[va]), verbose=0)
    histories.append(h)
    print("fold", fold, h.history["val_loss"][-1], flush=True)
