"""The step number is a static argument (for the learning rate's schedule), so each step is compiled anew."""

from functools import partial

import jax
import jax.numpy as jnp


def lr_at(step):
    return 1e-3 * min(1.0, (step + 1) / 100)


def mlp(params, x):
    for w, b in params:
        x = jax.nn.gelu(x @ w + b)
    return x


@partial(jax.jit, static_argnums=(2,))
def train_step(params, batch, step):
    loss, grads = jax.value_and_grad(lambda p: jnp.mean((mlp(p, batch) - batch) ** 2))(params)
    lr = lr_at(step)
    return jax.tree.map(lambda p, g: p - lr * g, params, grads), loss


key = jax.random.PRNGKey(0)
params = [(jax.random.normal(k, (48, 48)) * 0.1, jnp.zeros(48)) for k in jax.random.split(key, 10)]
batch = jax.random.normal(key, (64, 48))
for step in range(3_000):
    params, loss = train_step(params, batch, step)
    if step % 100 == 0:
        print(step, float(loss), flush=True)
