"""A jitted function that meets a new shape in every step."""

import jax
import jax.numpy as jnp


@jax.jit
def step(x):
    for _ in range(30):
        x = jnp.sin(x) @ jnp.ones((x.shape[1], x.shape[1]))
    return x.sum()


total = 0.0
for length in range(1, 400):
    total += float(step(jnp.ones((4, length))))
print("total", total)
