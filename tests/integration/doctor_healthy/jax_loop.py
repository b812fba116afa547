"""A JAX loop with one shape."""

import jax
import jax.numpy as jnp
import optax

params = {"w": jnp.zeros((8, 1))}
optimizer = optax.adam(1e-2)
state = optimizer.init(params)


@jax.jit
def step(params, state, x, y):
    loss, grads = jax.value_and_grad(lambda p: jnp.mean((x @ p["w"] - y) ** 2))(params)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(params, updates), state, loss


for turn in range(200):
    x = jax.random.normal(jax.random.key(turn), (64, 8))
    params, state, loss = step(params, state, x, x.sum(1, keepdims=True))
print("loss", float(loss))
