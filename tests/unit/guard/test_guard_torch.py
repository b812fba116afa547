"""Guard on plain PyTorch: the mathematics of the whole batch, and nothing lost or doubled by a failure."""

from __future__ import annotations

import copy
import gc
import random

import numpy as np
import pytest
import torch
from torch import nn

from penstock.core.errors import InvalidInput, OutOfMemory
from penstock.guard.torch.guard import Guard
from penstock.guard.torch.parts import default_weigh
from penstock.guard.torch.state import buffers_of

ROWS, STEPS = 23, 50
BATCH = 8


@pytest.fixture(autouse=True, scope="module")
def _quick_collections():
    """Recovery collects garbage; what imports made need not be looked at a hundred times."""
    gc.collect()
    gc.freeze()
    torch.set_num_threads(1)
    yield
    gc.unfreeze()


def make_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))


def make_batches(steps: int = STEPS) -> list[tuple[np.ndarray, np.ndarray]]:
    """Batches of 8, and a ragged one of 7 at the end of each 'epoch' of 23 rows."""
    rng = np.random.default_rng(1)
    out = []
    for i in range(steps):
        rows = BATCH if i % 3 != 2 else ROWS - 2 * BATCH
        out.append((rng.normal(size=(rows, 6)).astype(np.float32), rng.integers(0, 4, rows)))
    return out


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    "adamw-fused": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5),
}


def train_plainly(optimizer: str, criterion: nn.Module, clip: float | None, scheduled: bool) -> nn.Module:
    model = make_model()
    opt = OPTIMIZERS[optimizer](model.parameters())
    sched = torch.optim.lr_scheduler.StepLR(opt, 7, 0.7) if scheduled else None
    for x, y in make_batches():
        opt.zero_grad()
        criterion(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        if sched:
            sched.step()
    return model


def assert_same(a: nn.Module, b: nn.Module, rtol: float = 1e-5) -> None:
    for (name, left), right in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        scale = left.abs().max().clamp(min=1e-3)
        assert ((left - right).abs().max() / scale).item() <= rtol, name


@pytest.mark.parametrize("micro", [3, 1])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_same_mathematics(optimizer, micro):
    weights = torch.tensor([1.0, 0.2, 2.0, 0.7])
    criterion = nn.CrossEntropyLoss(weight=weights, ignore_index=3)
    plain = train_plainly(optimizer, criterion, clip=0.5, scheduled=True)
    model = make_model()
    opt = OPTIMIZERS[optimizer](model.parameters())
    sched = torch.optim.lr_scheduler.StepLR(opt, 7, 0.7)
    guard = Guard(model, opt, micro_batch=micro, clip_norm=0.5)
    for batch in make_batches():
        guard.step(batch, criterion)
        sched.step()
    assert_same(plain, model)


def test_loss_is_that_of_the_whole_batch():
    batch = make_batches(1)[0]
    model = make_model()
    whole = nn.CrossEntropyLoss()(model(torch.from_numpy(batch[0])), torch.from_numpy(batch[1])).item()
    guard = Guard(model, torch.optim.SGD(model.parameters(), 0.1), micro_batch=3)
    assert guard.step(batch, nn.CrossEntropyLoss()).item() == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("as_tensors", [False, True])
def test_ignored_samples_do_not_count(as_tensors):
    x, y = make_batches(1)[0]
    criterion = nn.CrossEntropyLoss(ignore_index=int(y[0]))
    model = make_model()
    whole = criterion(model(torch.from_numpy(x)), torch.from_numpy(y)).item()
    guard = Guard(model, torch.optim.SGD(model.parameters(), 0.1), micro_batch=3)
    batch = (torch.from_numpy(x), torch.from_numpy(y)) if as_tensors else (x, y)
    assert guard.step(batch, criterion).item() == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("rows", [9, 3000])
def test_few_labels_and_many_are_counted_alike(rows):
    labels = np.random.default_rng(0).integers(0, 3, (rows, 2))
    weigh = default_weigh(nn.CrossEntropyLoss(ignore_index=1))
    assert weigh is not None and weigh((None, labels)) == np.sum(labels != 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_losses_of_parts_are_summed_in_their_precision_or_a_better_one(dtype):
    model = make_model().to(dtype)
    guard = Guard(model, torch.optim.SGD(model.parameters(), 0.0), micro_batch=3)
    x, _ = make_batches(1)[0]
    whole = model(torch.from_numpy(x).to(dtype)).double().pow(2).mean().item()
    found = guard.step(x, lambda model, x: model(x.to(dtype)).pow(2).mean())
    assert found.dtype == (torch.float32 if dtype == torch.bfloat16 else dtype) and not found.requires_grad
    assert found.item() == pytest.approx(whole, rel=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("readonly", [False, True])
def test_parts_are_made_tensors_ahead_only_where_they_are_views(readonly):
    """A copy of each part is made when its turn comes, so that there is one at a time."""
    model, ready = make_model(), []
    guard = Guard(model, torch.optim.SGD(model.parameters(), 0.1), micro_batch=3)
    x, y = make_batches(1)[0]
    x.flags.writeable = not readonly

    def loss_fn(model, batch):
        ready.append(len(guard._stepper._views))
        assert np.shares_memory(batch[0].numpy(), x) != readonly
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    guard.step((x, y), loss_fn)
    assert ready == ([0, 0, 0] if readonly else [2, 1, 0])


def test_all_buffers_are_found_each_once():
    norm = nn.BatchNorm1d(4)
    shared = nn.Sequential(norm, nn.ModuleList([norm, nn.Sequential(nn.BatchNorm1d(4, affine=False))]))
    shared.register_module("none", None)
    shared.register_buffer("empty", None)
    found = buffers_of(shared)
    assert len(found) == 6 and {*map(id, found)} == {*map(id, shared.buffers())}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_function_losses_and_sums(reduction):
    def loss_fn(model, batch):
        return (model(batch["x"]) - batch["y"]).pow(2).mean()

    x = np.random.default_rng(0).normal(size=(10, 6)).astype(np.float32)
    results = []
    for micro in (10, 3):
        model = make_model()
        guard = Guard(model, torch.optim.SGD(model.parameters(), 0.01), micro_batch=micro)
        if reduction == "mean":
            guard.step({"x": x, "y": np.ones((10, 4), np.float32)}, loss_fn)
        else:
            guard.step((x, np.ones((10, 4), np.float32)), nn.MSELoss(reduction="sum"))
        results.append(model)
    assert_same(*results)


def test_token_weights():
    """A mean over tokens is not a mean over samples: `weight` counts them."""
    x = np.random.default_rng(0).normal(size=(8, 5, 6)).astype(np.float32)
    mask = np.random.default_rng(1).random((8, 5)) < 0.4
    mask[:, 0] = True

    def loss_fn(model, batch):
        return (model(batch["x"]).pow(2).mean(-1) * batch["mask"]).sum() / batch["mask"].sum()

    results = []
    for micro in (8, 3):
        model = make_model()
        guard = Guard(model, torch.optim.SGD(model.parameters(), 0.1), micro_batch=micro)
        guard.step({"x": x, "mask": mask}, loss_fn, weight=lambda part: part["mask"].sum())
        results.append(model)
    assert_same(*results)


class Faults:
    """Raises out-of-memory errors at random in the given phases, at most `per_step` times in one real step."""

    def __init__(self, rate: float, phases: tuple[str, ...], per_step: int) -> None:
        self.random, self.rate, self.phases, self.per_step = random.Random(7), rate, phases, per_step
        self.raised = dict.fromkeys(phases, 0)
        self.this_step = 0

    def maybe(self, phase: str) -> None:
        if phase in self.phases and self.this_step < self.per_step and self.random.random() < self.rate:
            self.raised[phase] += 1
            self.this_step += 1
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes.")


class FaultyGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, faults):
        ctx.faults = faults
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.faults.maybe("backward")
        return grad, None


class TearingSGD(torch.optim.Optimizer):
    """Momentum SGD that can fail between any two parameters, having made half of its state."""

    def __init__(self, params, faults):
        super().__init__(params, {"lr": 0.1})
        self.faults = faults

    @torch.no_grad()
    def step(self):
        for param in self.param_groups[0]["params"]:
            state = self.state[param]
            if "buf" not in state:
                state["buf"] = torch.zeros_like(param)
                state["steps"] = 0
            self.faults.maybe("apply")
            state["steps"] += 1
            state["buf"].mul_(0.9).add_(param.grad)
            param.sub_(state["buf"] * self.param_groups[0]["lr"])


def train_with_faults(model: nn.Module, faults: Faults, steps: int) -> tuple[TearingSGD, list[float]]:
    opt = TearingSGD(model.parameters(), faults)
    guard = Guard(model, opt)

    def loss_fn(model, batch):
        faults.maybe("forward")
        out = model(FaultyGrad.apply(batch[0].requires_grad_(), faults))
        return nn.functional.cross_entropy(out, batch[1])

    losses = []
    for batch in make_batches(steps):
        losses.append(guard.step(batch, loss_fn).item())
        faults.this_step = 0
    return opt, losses


def test_torn_optimizer_steps_change_nothing():
    """Batch normalisation, dropout and momentum included: equal to the calm run, bit for bit."""
    results = []
    for rate in (0.0, 0.2):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4))
        faults = Faults(rate, ("apply",), per_step=1)
        opt, losses = train_with_faults(model, faults, 80)
        results.append((model.state_dict(), [s["buf"] for s in opt.state.values()], losses))
    assert faults.raised["apply"] >= 40
    assert results[0][2] == results[1][2]
    assert all(torch.equal(a, b) for a, b in zip(results[0][0].values(), results[1][0].values(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(results[0][1], results[1][1], strict=True))


def test_faults_anywhere_lose_and_double_nothing():
    """100+ faults in all phases: the result is that of the calm run up to the rounding of other splits."""
    results = []
    for rate in (0.0, 0.1):
        model, faults = make_model(), Faults(rate, ("forward", "backward", "apply"), per_step=2)
        opt, losses = train_with_faults(model, faults, 150)
        results.append((model, opt, losses))
    (calm, calm_opt, calm_losses), (model, opt, losses) = results
    assert sum(faults.raised.values()) >= 100 and min(faults.raised.values()) >= 10
    assert_same(calm, model, rtol=2e-5)
    assert np.allclose(calm_losses, losses, rtol=1e-4)
    assert {s["steps"] for s in opt.state.values()} == {150}
    for left, right in zip(calm_opt.state.values(), opt.state.values(), strict=True):
        assert torch.allclose(left["buf"], right["buf"], rtol=1e-4, atol=1e-6)


def test_other_errors_leave_state_as_it_was():
    model = make_model()
    before = copy.deepcopy(model.state_dict())
    opt = torch.optim.AdamW(model.parameters())
    guard = Guard(model, opt, micro_batch=3)
    calls = []

    def loss_fn(model, batch):
        calls.append(1)
        if len(calls) == 3:
            raise ZeroDivisionError
        return model(batch[0]).mean()

    with pytest.raises(ZeroDivisionError):
        guard.step(make_batches(1)[0], loss_fn)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert not opt.state and all(p.grad is None for p in model.parameters())
    assert not guard._stepper._views  # which would hold the batch


def test_gives_up_with_a_verdict():
    model = make_model()
    guard = Guard(model, torch.optim.SGD(model.parameters(), 0.1))

    def loss_fn(model, batch):
        raise MemoryError("no room")

    with pytest.raises(OutOfMemory, match=r"forward pass of 1 sample does not fit.*no room") as caught:
        guard.step(make_batches(1)[0], loss_fn)
    assert caught.value.micro == 1 and caught.value.__context__ is None


def test_auto_rungs_precision_and_remat_are_climbed():
    model = make_model()
    guard = Guard(model, torch.optim.SGD(model.parameters(), 0.1), precision="auto", remat="auto")
    seen = []

    def loss_fn(model, batch):
        out = model(batch[0])
        seen.append((out.dtype, bool(getattr(model[0], "_penstock_remat", False))))
        if not seen[-1][1]:
            raise MemoryError
        return out.float().pow(2).mean()

    guard.step(make_batches(1)[0], loss_fn)
    assert (torch.bfloat16, False) in seen and seen[-1] == (torch.bfloat16, True)


def test_remat_gives_the_same_gradients():
    results = []
    for remat in (False, True):
        model = make_model()
        guard = Guard(model, torch.optim.SGD(model.parameters(), 0.1), remat=remat)
        guard.step(make_batches(1)[0], nn.CrossEntropyLoss())
        results.append(model)
    assert all(torch.equal(a, b) for a, b in zip(results[0].parameters(), results[1].parameters(), strict=True))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_remat_counts_a_batch_once_into_batch_normalisation(momentum):
    """A recomputed block passes its batch twice; running statistics, their count and the weights are as without."""
    results = []
    for remat in (False, True):
        torch.manual_seed(0)
        blocks = [
            nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, momentum=momentum), nn.ReLU(), nn.Dropout(0.2))
            for _ in range(2)
        ]
        model = nn.Sequential(*blocks, nn.Linear(6, 4))
        guard = Guard(model, torch.optim.SGD(model.parameters(), 0.1), remat=remat)
        rng = np.random.default_rng(0)
        for _ in range(3):
            batch = rng.normal(size=(8, 6)).astype(np.float32), rng.integers(0, 4, 8)
            guard.step(batch, nn.CrossEntropyLoss())
        results.append(model.state_dict())
        assert blocks[0][1].momentum == momentum and int(blocks[0][1].num_batches_tracked) == 3
    kept, recomputed = results
    assert all(torch.equal(kept[name], recomputed[name]) for name in kept)


def test_grad_scaler_keeps_its_scale_over_a_failed_step():
    model = make_model()
    opt = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    guard = Guard(model, opt, scaler=scaler, clip_norm=1.0)
    failures = iter([True, False] * 40)

    def fail_once(params):
        if next(failures):
            raise MemoryError

    guard._stepper.options = type(guard._stepper.options)(scaler=scaler, clip_norm=1.0, before_apply=fail_once)
    plain = make_model()
    plain_opt = torch.optim.SGD(plain.parameters(), 0.1)
    for x, y in make_batches(6):
        guard.step((x, y), nn.CrossEntropyLoss())
        plain_opt.zero_grad()
        nn.CrossEntropyLoss()(plain(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        plain_opt.step()
    assert_same(plain, model)
    assert scaler.get_scale() == 4096.0


def test_batch_norm_is_warned_about_once():
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    guard = Guard(model, torch.optim.SGD(model.parameters(), 0.1), micro_batch=4)
    with pytest.warns(UserWarning, match="1 normalise over the batch"):
        guard.step(make_batches(1)[0], nn.CrossEntropyLoss())


def test_refusals_say_what_to_use():
    model = make_model()
    with pytest.raises(InvalidInput, match="LBFGS"):
        Guard(model, torch.optim.LBFGS(model.parameters()))
    with pytest.raises(InvalidInput, match="precision"):
        Guard(model, torch.optim.SGD(model.parameters(), 0.1), precision="half")
    guard = Guard(model, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(InvalidInput, match="one number"):
        guard.step(make_batches(1)[0], nn.CrossEntropyLoss(reduction="none"))


def test_state_dict_goes_on_at_the_learned_size():
    model = make_model()
    guard = Guard(model, torch.optim.SGD(model.parameters(), 0.1), micro_batch=3)
    guard.step(make_batches(1)[0], nn.CrossEntropyLoss())
    other = Guard(model, torch.optim.SGD(model.parameters(), 0.1))
    other.load_state_dict(guard.state_dict())
    assert other.micro_batch == 3
