"""Optimizer steps of torch that cannot be torn: equal to plain ones, in little memory, whatever fails."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from penstock.core.errors import OutOfMemory
from penstock.core.events import events
from penstock.guard.recovery.undo import units
from penstock.guard.torch.guard import Guard
from penstock.guard.torch.state import WholeCopy

RNG = np.random.default_rng(0)
BATCHES = [(RNG.normal(size=(8, 24)).astype(np.float32), RNG.integers(0, 4, 8)) for _ in range(4)]
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05),
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.1),
    "dampened": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, dampening=0.3),
    "nesterov foreach": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "adam loop": lambda p: torch.optim.Adam(p, 0.01, foreach=False),
    "adamw foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.05),
    "adadelta": lambda p: torch.optim.Adadelta(p, 0.5),
    "adamax": lambda p: torch.optim.Adamax(p, 0.01),
    "nadam": lambda p: torch.optim.NAdam(p, 0.01),
    "radam": lambda p: torch.optim.RAdam(p, 0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5, centered=True),
    "rprop": lambda p: torch.optim.Rprop(p, 0.01),
    "asgd": lambda p: torch.optim.ASGD(p, 0.01),
    "adafactor": lambda p: torch.optim.Adafactor(p, 0.01, weight_decay=0.1),
}


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 4))


def groups(model):
    """Two groups, so that one of them could be stepped and the other not."""
    return [{"params": list(model[:3].parameters())}, {"params": list(model[3:].parameters()), "lr": 0.02}]


def plainly(make) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = make_model()
    optimizer = make(groups(model))
    for x, y in BATCHES:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimizer.step()
    return model, optimizer


def assert_same(left, right):
    (model, optimizer), (other, other_optimizer) = left, right
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)
        found, wanted = other_optimizer.state[b], optimizer.state[a]
        for name, value in wanted.items():
            if value is None:  # SGD notes that it has no momentum
                continue
            assert torch.allclose(torch.as_tensor(value).float(), torch.as_tensor(found[name]).float(), atol=1e-5), name
            assert torch.as_tensor(value).shape == torch.as_tensor(found[name]).shape


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_units_and_fused_kernels_step_as_the_optimizer_does(name, monkeypatch):
    monkeypatch.setattr(units, "LEAST", 700)  # so small that most parameters are cut in slices
    model = make_model()
    optimizer = OPTIMIZERS[name](groups(model))
    guard = Guard(model, optimizer)
    events.recent.clear()
    for batch in BATCHES:
        guard.step(batch, nn.CrossEntropyLoss())
    assert_same(plainly(OPTIMIZERS[name]), (model, optimizer))
    form = "fused" if name in ("sgd", "momentum", "adam", "adagrad") else "units"
    assert guard._stepper._protected.form == form
    assert any(event.kind == "guard.fused" for event in events.recent) == (form == "fused")
    assert len(optimizer.state) == len(list(model.parameters())) or name == "sgd"


def test_schedulers_scalers_and_saved_states_go_on_working(monkeypatch):
    monkeypatch.setattr(units, "LEAST", 700)
    results = []
    for guarded in (False, True):
        model = make_model()
        optimizer = torch.optim.RMSprop(model.parameters(), 0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        guard = Guard(model, optimizer, scaler=torch.amp.GradScaler("cpu", init_scale=8.0))
        for x, y in BATCHES:
            if guarded:
                guard.step((x, y), nn.CrossEntropyLoss())
            else:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
                optimizer.step()
            schedule.step()
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        results.append((model, optimizer))
    assert guard._stepper._protected.form == "units"
    assert_same(*results)


def test_hooks_and_own_steps_are_stepped_whole():
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    guard = Guard(model, optimizer)
    guard.step(BATCHES[0], nn.CrossEntropyLoss())
    assert guard._stepper._protected.form == "whole" and calls == [1]


def test_a_copy_of_everything_moves_to_a_file():
    tensors = [torch.randn(1_500_000), torch.randn(3, 5).to(torch.bfloat16), torch.randn(4, 6).T]
    before = [tensor.clone() for tensor in tensors]
    copy_of = WholeCopy("test")
    copy_of.save(tensors)
    assert copy_of.nbytes >= 6_000_000
    copy_of.forget()
    assert copy_of.lean() and copy_of.nbytes == 0 and not copy_of.lean()
    copy_of.save(tensors)
    for tensor in tensors:
        tensor.zero_()
    copy_of.restore()
    assert all(torch.equal(a, b) for a, b in zip(before, tensors, strict=True)) and copy_of.nbytes == 0


TORN = """
import json, resource, sys
import numpy as np, torch
from penstock.core.errors import OutOfMemory
from penstock.guard import Guard
torch.set_num_threads(1)
name, options = sys.argv[1], json.loads(sys.argv[2])
used = lambda: [int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith("VmData")][0]
batch = np.ones((2, 64), "f"), np.zeros(2, "i8")

def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 2048), torch.nn.Linear(2048, 2048), torch.nn.Linear(2048, 64))
    groups = [{"params": list(model[:2].parameters())}, {"params": list(model[2:].parameters())}]
    return model, getattr(torch.optim, name)(groups, 0.01, **options)

def state(model, optimizer):
    kept = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor) and v.numel() > 1]
    return [t.detach().double().sum().item() for t in [*model.parameters(), *kept]]

model, optimizer = make()
guard, expected = Guard(model, optimizer), []
for _ in range(3):
    expected.append(state(model, optimizer))
    guard.step(batch, torch.nn.CrossEntropyLoss())
persistent = sum(t.nbytes for t in [*model.parameters(), *(v for s in optimizer.state.values() for v in s.values()
                 if isinstance(v, torch.Tensor))])
own = guard._stepper.holds()["guard"] / persistent
whole = torn = failed = 0
for first in (True, False):
    for extra in range(0, 60_000_000, 4_000_000):
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)
        model, optimizer = make()
        guard = Guard(model, optimizer)
        if not first:
            guard.step(batch, torch.nn.CrossEntropyLoss())
        resource.setrlimit(resource.RLIMIT_DATA, (used() + extra, resource.RLIM_INFINITY))
        done = 0 if first else 1
        try:
            guard.step(batch, torch.nn.CrossEntropyLoss())
            done += 1
            whole += 1
        except OutOfMemory:
            failed += 1
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)
        torn += not np.allclose(state(model, optimizer), expected[done], rtol=1e-6)
print(json.dumps({"own": own, "whole": whole, "torn": torn, "failed": failed, "form": guard._stepper._protected.form}))
"""


@pytest.mark.parametrize(
    ("name", "options", "form"),
    [
        ("SGD", {"momentum": 0.9}, "fused"),
        pytest.param("AdamW", {}, "fused", marks=pytest.mark.slow),
        ("AdamW", {"foreach": True}, "units"),
        pytest.param("RMSprop", {}, "units", marks=pytest.mark.slow),
        pytest.param("Adafactor", {"weight_decay": 0.1}, "units", marks=pytest.mark.slow),
    ],
)
def test_real_failures_at_every_place_tear_nothing(name, options, form):
    """Allocations really fail: with every amount of memory left, a step is taken whole or not at all."""
    env = {
        **os.environ,
        "PYTHONPATH": os.getcwd(),
        "OMP_NUM_THREADS": "1",
        "MALLOC_MMAP_THRESHOLD_": "131072",
        "MALLOC_TRIM_THRESHOLD_": "131072",
    }
    command = [sys.executable, "-c", TORN, name, json.dumps(options)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["form"] == form
    assert found["torn"] == 0
    assert found["failed"] >= 4 and found["whole"] >= 4, found
    assert found["own"] <= 0.05, found


def test_state_that_does_not_fit_is_found_out_after_the_first_part(monkeypatch):
    """Not after all of them: a step of many parts would take minutes to fail three times."""
    calls = []

    def loss_fn(model, batch):
        calls.append(len(batch[0]))
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def no_room(_):
        raise MemoryError("no room for the optimizer's state")

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    before = copy.deepcopy(model.state_dict())
    guard = Guard(model, optimizer, micro_batch=2)
    with monkeypatch.context() as patch:
        patch.setattr("penstock.guard.torch.fused.make_state", no_room)
        with pytest.raises(OutOfMemory, match="optimizer step does not fit"):
            guard.step(BATCHES[0], loss_fn)
    assert calls == [2, 2, 2]  # one part in each of three tries
    assert not optimizer.state
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    guard.step(BATCHES[0], loss_fn)
    assert len(optimizer.state) == 6
