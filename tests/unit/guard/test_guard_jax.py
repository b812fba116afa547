"""JaxGuard on a plain JAX loop: the mathematics of the whole batch, and nothing lost or doubled by a failure."""

from __future__ import annotations

import random

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from penstock.core.errors import InvalidInput, OutOfMemory
from penstock.guard.jax.guard import JaxGuard

STEPS = 50


def make_params():
    keys = jax.random.split(jax.random.key(0), 2)
    return {"w": jax.random.normal(keys[0], (6, 16)) * 0.3, "v": jax.random.normal(keys[1], (16, 4)) * 0.3}


def logits(params, x):
    return jnp.tanh(x @ params["w"]) @ params["v"]


def loss_fn(params, batch):
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, batch["x"]), batch["y"]).mean()


def batches(steps=STEPS):
    """Batches of 8, and a ragged one of 7 now and then."""
    rng = np.random.default_rng(1)
    for i in range(steps):
        rows = 7 if i % 3 == 2 else 8
        yield {"x": rng.normal(size=(rows, 6)).astype(np.float32), "y": rng.integers(0, 4, rows)}


def optimizers():
    schedule = optax.exponential_decay(0.05, 7, 0.8)
    return {
        "sgd": optax.sgd(schedule, momentum=0.9, nesterov=True),
        "adamw": optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(schedule, weight_decay=0.1)),
    }


def train_plainly(optimizer, steps=STEPS):
    params = make_params()
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, batch):
        gradients = jax.grad(loss_fn)(params, batch)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    for batch in batches(steps):
        params, state = step(params, state, batch)
    return params, state


def assert_same(left, right, rtol=1e-5):
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert np.abs(a - b).max() <= rtol * max(np.abs(a).max(), 1e-3)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_same_mathematics(name):
    plain, state = train_plainly(optimizers()[name])
    guard = JaxGuard(loss_fn, optimizers()[name], make_params(), micro_batch=3)
    for batch in batches():
        guard.step(batch)
    assert_same(plain, guard.params)
    assert_same(state, guard.opt_state, rtol=1e-4)


def test_faults_anywhere_lose_and_double_nothing():
    """100+ faults raised from inside the compiled gradients and the update."""
    optimizer = optimizers()["adamw"]
    plain, _ = train_plainly(optimizer, steps=120)
    dice, raised, this_step = random.Random(3), {"backward": 0, "apply": 0}, [0]

    def maybe(phase):
        if this_step[0] < 2 and dice.random() < {"backward": 0.12, "apply": 0.5}[phase]:
            this_step[0] += 1
            raised[phase] += 1
            raise MemoryError(f"injected in {phase}")

    guard = JaxGuard(loss_fn, optimizer, make_params())
    gradients, update = guard._stepper._gradients, guard._stepper._apply
    guard._stepper._gradients = lambda *a: (maybe("backward"), gradients(*a))[1]
    guard._stepper._apply = guard._stepper._apply_given = lambda *a: (maybe("apply"), update(*a))[1]
    guard._stepper._apply_state_given = guard._stepper._apply
    for batch in batches(120):
        guard.step(batch)
        this_step[0] = 0
    assert sum(raised.values()) >= 100 and min(raised.values()) >= 20, raised
    assert_same(plain, guard.params, rtol=2e-5)
    counts = [int(leaf) for leaf in jax.tree.leaves(guard.opt_state) if leaf.dtype == jnp.int32]
    assert counts and set(counts) == {120}


def test_a_lean_first_step_gives_the_state_and_leaves_the_users_parameters():
    """Also where the step fails when the old state is gone: it comes back from the file."""
    params, optimizer = make_params(), optimizers()["adamw"]
    before = jax.tree.map(np.array, params)
    guard, torn = JaxGuard(loss_fn, optimizer, params), []
    assert guard._stepper.lean()
    given = guard._stepper._apply_state_given

    def failing(*args):
        found = given(*args)
        if not torn:
            torn.append([leaf.is_deleted() for leaf in jax.tree.leaves(args[1])])
            raise MemoryError("injected")
        return found

    guard._stepper._apply_state_given = failing
    for batch in batches(3):
        guard.step(batch)
    assert any(torn[0])
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(params))
    assert_same(before, params, rtol=0)
    assert_same(train_plainly(optimizer, steps=3)[0], guard.params)


def test_a_state_that_is_the_parameters_is_not_given():
    params = make_params()
    optimizer = optax.GradientTransformation(
        lambda params: params, lambda found, state, params: (jax.tree.map(lambda g: -0.1 * g, found), state)
    )
    guard = JaxGuard(loss_fn, optimizer, params)
    assert guard._stepper.lean()
    for batch in batches(2):
        guard.step(batch)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(params))


def test_tokens_are_weighted_and_keys_reach_the_loss():
    rng = np.random.default_rng(0)
    batch = {"x": rng.normal(size=(8, 5, 6)).astype(np.float32), "mask": rng.random((8, 5)) < 0.4}
    batch["mask"][:, 0] = True

    def token_loss(params, batch, key):
        assert jax.random.bits(key).shape == ()
        return (jnp.square(logits(params, batch["x"])).mean(-1) * batch["mask"]).sum() / batch["mask"].sum()

    found = []
    for micro in (8, 3):
        guard = JaxGuard(token_loss, optax.sgd(0.1), make_params(), micro_batch=micro)
        loss = guard.step(batch, key=jax.random.key(1), weight=lambda part: part["mask"].sum())
        found.append((guard.params, float(loss)))
    assert_same(found[0][0], found[1][0])
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-6)


def test_lower_precision_is_a_rung_and_then_a_verdict():
    seen = []

    def hungry(params, batch):
        seen.append(params["w"].dtype)
        if params["w"].dtype == jnp.float32:
            raise MemoryError("float32 is too large")
        return loss_fn(params, batch)

    guard = JaxGuard(hungry, optax.sgd(0.1), make_params(), precision="auto")
    guard.step(next(batches()))
    assert seen[-1] == jnp.bfloat16 and guard.params["w"].dtype == jnp.float32
    before = guard.params
    strict = JaxGuard(hungry, optax.sgd(0.1), make_params())
    with pytest.raises(OutOfMemory, match="does not fit"):
        strict.step(next(batches()))
    assert guard.params is before


def test_refusals_and_state():
    with pytest.raises(InvalidInput, match="GradientTransformation"):
        JaxGuard(loss_fn, object(), make_params())
    with pytest.raises(InvalidInput, match="precision"):
        JaxGuard(loss_fn, optax.sgd(0.1), make_params(), precision="half")
    guard = JaxGuard(lambda p, b: jnp.ones(3), optax.sgd(0.1), make_params(), micro_batch=3)
    with pytest.raises(InvalidInput, match="one number"):
        guard.step(next(batches()))
    guard = JaxGuard(loss_fn, optax.sgd(0.1), make_params(), micro_batch=3)
    guard.step(next(batches()))
    other = JaxGuard(loss_fn, optax.sgd(0.1), make_params())
    other.load_state_dict(guard.state_dict())
    other.restore(guard.params, guard.opt_state)
    assert other.micro_batch == 3 and other.params is guard.params
