"""One training under a limit, for guard_memory.py: with the guard, or with micro-batches written by hand.

Covers: three steps of a network of two large matrices on torch, Keras-torch, Keras-TensorFlow and JAX.
Does not cover: choosing limits (guard_memory.py).

The limit is set before model and optimizer are made and counts from there, so that the memory of interpreter and
framework does not hide a difference. Exit code 0: trained, with a finite loss.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import resource
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

ROWS, MICRO, WIDE = 128, 16, 1200
RNG = np.random.default_rng(0)
BATCHES = [(RNG.normal(size=(ROWS, 64)).astype(np.float32), RNG.integers(0, 8, ROWS)) for _ in range(3)]
SIZES = (64, WIDE, WIDE, WIDE, 8)
WIDE_SIZES, WIDE_ROWS = (512, 4096, 4096, 8), 1024


def leave(nbytes: int) -> None:
    """Allow so many bytes of data more than are in use now."""
    with open("/proc/self/status", encoding="ascii") as file:
        used = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (used + nbytes, resource.RLIM_INFINITY))


def parts(batch: tuple[Any, Any]) -> list[tuple[Any, Any]]:
    """The micro-batches that the hand-written loops use."""
    return [(batch[0][i : i + MICRO], batch[1][i : i + MICRO]) for i in range(0, len(batch[0]), MICRO)]


def wide_batches() -> list[tuple[Any, Any]]:
    """Two batches of the wide network."""
    return [
        (RNG.normal(size=(WIDE_ROWS, WIDE_SIZES[0])).astype(np.float32), RNG.integers(0, 8, WIDE_ROWS))
        for _ in range(2)
    ]


def warm_torch() -> None:
    """Threads and pools are there before the limit, and torch._dynamo: the first optimizer loads it (75 MB)."""
    import torch

    torch.set_num_threads(1)
    layer = torch.nn.Linear(8, 8)
    layer(torch.zeros(1, 8)).sum().backward()
    torch.optim.SGD(layer.parameters(), 0.1).step()


def on_torch(optimizer: str, guarded: bool, nbytes: int, *, wide: bool = False) -> float:
    """Plain torch; `wide` is a network of 76 MB, and a guard that finds the micro-batch by itself."""
    import torch

    from penstock.guard import Guard

    warm_torch()
    sizes, batches, micro = (WIDE_SIZES, wide_batches(), None) if wide else (SIZES, BATCHES, MICRO)
    leave(nbytes)
    layers = [torch.nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    model = torch.nn.Sequential(*[each for layer in layers for each in (layer, torch.nn.ReLU())][:-1])
    options = {"momentum": 0.9} if optimizer == "SGD" else {}
    made = getattr(torch.optim, optimizer)(model.parameters(), 0.001, **options)
    loss_fn, guard, total = torch.nn.CrossEntropyLoss(), Guard(model, made, micro_batch=micro), torch.zeros(())
    for batch in batches:
        if guarded:
            total = guard.step(batch, loss_fn)
            continue
        made.zero_grad()
        for x, y in parts(batch):
            total = loss_fn(model(torch.from_numpy(x)), torch.from_numpy(y)) * (len(x) / len(batch[0]))
            total.backward()
        made.step()
    return float(total.detach())


def on_keras(optimizer: str, guarded: bool, nbytes: int) -> float:
    """Keras on the backend of the environment."""
    import keras

    from penstock.guard import fit

    keras.utils.set_random_seed(0)
    warm = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
    warm.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    warm.train_on_batch(np.ones((4, 4), np.float32), np.zeros(4))
    leave(nbytes)
    layers = [keras.layers.Dense(size, activation="relu") for size in SIZES[1:-1]]
    model = keras.Sequential([keras.Input((SIZES[0],)), *layers, keras.layers.Dense(SIZES[-1])])
    # With its own 1e-30 the product of two factors is 0 where a unit is silent, and the loss NaN by the third step.
    options = {"SGD": {"momentum": 0.9}, "Adafactor": {"epsilon_1": 1e-12}}.get(optimizer, {})
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(getattr(keras.optimizers, optimizer)(0.001, **options), loss)
    if guarded:
        return float(fit(model, BATCHES, micro_batch=MICRO, verbose=0).history["loss"][-1])
    return _by_hand(model, loss)


def _by_hand(model: Any, loss_fn: Any) -> float:
    """What people write: gradients of each micro-batch added to sums, then one apply."""
    import keras

    model.optimizer.build(model.trainable_variables)
    if keras.backend.backend() == "torch":
        return _by_hand_torch(model, loss_fn)
    import tensorflow as tf

    @tf.function  # type: ignore[untyped-decorator]
    def gradients(x: Any, y: Any, share: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True)) * share
        return loss, tape.gradient(loss, model.trainable_variables)

    apply = tf.function(lambda found: model.optimizer.apply(found, model.trainable_variables))
    loss = 0.0
    for batch in BATCHES:
        sums: Any = None
        for x, y in parts(batch):
            loss, found = gradients(tf.constant(x), tf.constant(y), tf.constant(len(x) / ROWS))
            sums = found if sums is None else [a + b for a, b in zip(sums, found, strict=True)]
        apply(sums)
    return float(loss)


def _by_hand_torch(model: Any, loss_fn: Any) -> float:
    import torch

    loss = torch.zeros(())
    for batch in BATCHES:
        model.zero_grad()
        for x, y in parts(batch):
            loss = loss_fn(torch.from_numpy(y), model(torch.from_numpy(x), training=True)) * (len(x) / ROWS)
            loss.backward()
        with torch.no_grad():
            variables = model.trainable_variables
            model.optimizer.apply([v.value.grad for v in variables], variables)
    return float(loss)


def on_jax(optimizer: str, guarded: bool, nbytes: int) -> float:
    """JAX with Optax; the hand-written update is given its parameters and state, as careful people do."""
    import jax
    import jax.numpy as jnp
    import optax

    from penstock.guard import JaxGuard

    jax.jit(lambda x: x @ x)(jnp.ones((64, 64))).block_until_ready()
    leave(nbytes)
    keys = jax.random.split(jax.random.key(0), len(SIZES))
    params = [jax.random.normal(k, (a, b)) * 0.02 for k, a, b in zip(keys, SIZES, SIZES[1:], strict=False)]

    def loss_fn(params: Any, batch: Any) -> Any:
        x = batch[0]
        for weights in params[:-1]:
            x = jax.nn.relu(x @ weights)
        return optax.softmax_cross_entropy_with_integer_labels(x @ params[-1], batch[1]).mean()

    names = {"SGD": lambda: optax.sgd(0.001, momentum=0.9), "Adafactor": lambda: optax.adafactor(0.001)}
    made = names[optimizer]() if optimizer in names else getattr(optax, optimizer.lower())(0.001)
    if guarded:
        guard = JaxGuard(loss_fn, made, params, micro_batch=MICRO)
        del params
        return float([guard.step(batch) for batch in BATCHES][-1])
    state, gradients = made.init(params), jax.jit(jax.value_and_grad(loss_fn))
    add = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b), donate_argnums=0)

    def update(params: Any, state: Any, found: Any) -> Any:
        updates, state = made.update(found, state, params)
        return optax.apply_updates(params, updates), state

    apply, loss = jax.jit(update, donate_argnums=(0, 1)), 0.0
    for batch in BATCHES:
        sums = None
        for part in parts(batch):
            loss, found = gradients(params, part)
            sums = found if sums is None else add(sums, found)
        params, state = apply(params, state, sums)
    jax.block_until_ready(params)  # type: ignore[no-untyped-call]
    return float(loss)


def try_once(stack: str, optimizer: str, side: str, limit: str) -> None:
    """Train and end this process. Tearing down is no part of what must fit."""
    ways: dict[str, Callable[[str, bool, int], float]] = {
        "torch": on_torch,
        "torch-wide": functools.partial(on_torch, wide=True),
        "jax": on_jax,
    }
    run = ways.get(stack, on_keras)
    try:
        loss = run(optimizer, side == "guard", int(limit))
    except Exception as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n"[:600])
        os._exit(1)
    os._exit(0 if np.isfinite(loss) else 1)


def serve(stack: str) -> None:
    """Answer tries from stdin, each in a forked child: the framework is loaded once. For torch alone."""
    import torch

    torch.set_num_threads(1)
    if stack == "keras-torch":
        importlib.import_module("keras")
    importlib.import_module("penstock.guard")
    for line in sys.stdin:
        child = os.fork()
        if not child:
            try_once(stack, *line.split())
        sys.stdout.write(f"{os.waitpid(child, 0)[1]}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        try_once(*sys.argv[1:])
