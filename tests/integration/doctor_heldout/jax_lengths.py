"""Every batch has a length of its own, so XLA compiles the step again each time; there is no optimizer library."""

import jax
import jax.numpy as jnp


@jax.jit
def update(weights, tokens):
    def cost(w):
        hidden = tokens
        for layer in w:
            hidden = jnp.tanh(hidden @ layer) + jnp.sin(hidden)
        return (hidden**2).mean()

    gradients = jax.grad(cost)(weights)
    return [w - 0.01 * g for w, g in zip(weights, gradients)]


weights = [jax.random.normal(jax.random.key(n), (32, 32)) * 0.1 for n in range(12)]
for turn in range(4_000):
    weights = update(weights, jnp.ones((turn + 1, 32)))
print("done", float(weights[0].sum()))
