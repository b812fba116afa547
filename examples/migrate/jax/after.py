"""A CSV file into a small network in JAX with optax: penstock streams it, whatever its size.

python examples/migrate/jax/after.py TABLE.csv [EPOCHS]
"""

from __future__ import annotations

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import penstock as ps

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
    table = ps.read_csv(path, label="label", dtype="float32")
    features = table.schema["x"].shape[0]
    batches = table.cache().shuffle(seed=0).batch(BATCH, drop_last=True).jax()
    weights = {
        "w1": jnp.asarray(rng.normal(0, 0.2, (features, 64)), jnp.float32), "b1": jnp.zeros(64),
        "w2": jnp.asarray(rng.normal(0, 0.2, (64, 2)), jnp.float32), "b2": jnp.zeros(2),
    }  # fmt: skip
    state = optimizer.init(weights)
    for epoch in range(epochs):
        losses = []
        for x, y in batches:
            weights, state, loss = step(weights, state, x, y)
            losses.append(loss)
        print(
            f"epoch {epoch}: loss {float(jnp.stack(losses).mean()):.3f}, {time.perf_counter() - began:.2f} s",
            flush=True,
        )
        began = time.perf_counter()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3)
