"""Padded to one shape."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def step(x):
    for _ in range(30):
        x = jnp.sin(x) @ jnp.ones((x.shape[1], x.shape[1]))
    return x.sum()


total = 0.0
for length in range(1, 400):
    padded = np.zeros((4, 400), np.float32)
    padded[:, :length] = 1
    total += float(step(padded))
print("total", total)
