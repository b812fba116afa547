"""Optimizers that keep less: measured bytes per parameter, and steps that are right."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from penstock.core.errors import InvalidInput
from penstock.guard.optimizer_memory import lean_optimizer, state_nbytes
from penstock.guard.torch.guard import Guard

X = np.random.default_rng(0).normal(size=(16, 128)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 8, 16)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(128, 256), nn.Tanh(), nn.Linear(256, 8))


def per_parameter(memory: str | None, steps: int = 3) -> tuple[float, nn.Module, list[float]]:
    model = make_model()
    optimizer = lean_optimizer(model, memory, learning_rate=1e-2, weight_decay=0.1)
    guard = Guard(model, optimizer, micro_batch=5)
    losses = [guard.step((X, Y), nn.CrossEntropyLoss()).item() for _ in range(steps)]
    return state_nbytes(optimizer) / sum(p.numel() for p in model.parameters()), model, losses


def test_bytes_per_parameter():
    plain, _, _ = per_parameter(None)
    factored, _, losses = per_parameter("factored")
    assert plain == pytest.approx(8.0)
    assert factored < 0.2
    assert losses[-1] < losses[0]


def test_offloaded_steps_are_those_of_adamw():
    _, plain, _ = per_parameter(None, steps=10)
    bytes_each, offloaded, _ = per_parameter("offload", steps=10)
    assert bytes_each == pytest.approx(8.0)  # all of it in host memory
    for a, b in zip(plain.parameters(), offloaded.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-7)


def test_eight_bits_per_moment_and_a_failed_step_is_put_back(monkeypatch):
    pytest.importorskip("torchao")
    # torchao compiles its step, which takes half a minute and changes no number.
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    bytes_each, _, losses = per_parameter("8bit")
    assert bytes_each < 2.6  # vectors and small matrices stay in float32
    assert losses[-1] < losses[0]
    results = []
    for fail in (False, True):
        model = make_model()
        optimizer = lean_optimizer(model, "8bit", learning_rate=1e-2)
        guard = Guard(model, optimizer)
        step, tries = optimizer.step, []

        def torn(step=step, tries=tries, fail=fail):
            step()
            tries.append(1)
            if fail and len(tries) == 3:
                raise MemoryError("after the whole step was made")

        optimizer.step = torn
        for _ in range(4):
            guard.step((X, Y), nn.CrossEntropyLoss())
        results.append([p.detach().clone() for p in model.parameters()])
        assert len(tries) == 4 + fail
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_unknown_names_are_refused():
    with pytest.raises(InvalidInput, match="'factored', '8bit', 'offload'"):
        lean_optimizer(make_model(), "tiny")
