"""A CSV file into a small network in JAX with optax: all of it in memory, through pandas.

python examples/migrate/jax/before.py TABLE.csv [EPOCHS]
"""

from __future__ import annotations

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd

BATCH = 256


def loss_of(weights, x, y):
    hidden = jax.nn.relu(x @ weights["w1"] + weights["b1"])
    return optax.softmax_cross_entropy_with_integer_labels(hidden @ weights["w2"] + weights["b2"], y).mean()


def main(path, epochs):
    optimizer = optax.adam(1e-3)

    @jax.jit
    def step(weights, state, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(weights, x, y)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(weights, updates), state, loss

    rng = np.random.default_rng(0)
    began = time.perf_counter()
    table = pd.read_csv(path)
    features = table.drop(columns="label").to_numpy(np.float32)
    labels = table["label"].to_numpy(np.int32)
    weights = {
        "w1": jnp.asarray(rng.normal(0, 0.2, (features.shape[1], 64)), jnp.float32), "b1": jnp.zeros(64),
        "w2": jnp.asarray(rng.normal(0, 0.2, (64, 2)), jnp.float32), "b2": jnp.zeros(2),
    }  # fmt: skip
    state = optimizer.init(weights)
    for epoch in range(epochs):
        order, losses = rng.permutation(len(labels)), []
        for first in range(0, len(order) - BATCH + 1, BATCH):
            rows = order[first : first + BATCH]
            weights, state, loss = step(weights, state, features[rows], labels[rows])
            losses.append(loss)
        print(
            f"epoch {epoch}: loss {float(jnp.stack(losses).mean()):.3f}, {time.perf_counter() - began:.2f} s",
            flush=True,
        )
        began = time.perf_counter()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3)
