"""torch: fine-tuning under simulated quantization, a quantized teacher, masks beside a real checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from penstock.compress import Fit, Pruner, Schedule, Teacher, distill, quantize, save_model, score, shrink  # noqa: E402
from penstock.compress.framework import Loss, framework_of  # noqa: E402
from penstock.compress.quantize import quantized  # noqa: E402
from penstock.compress.teacher.distill import choose_mode  # noqa: E402
from penstock.compress.train import fine_tune  # noqa: E402
from penstock.core.errors import InvalidInput  # noqa: E402
from penstock.core.events import Event, events  # noqa: E402
from penstock.memory import limit  # noqa: E402
from penstock.memory.meter import Meter  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.normal(size=(512, 12)).astype(np.float32)
Y = (X[:, 0] * X[:, 1] + X[:, 2] > 0).astype(np.int64) + (X[:, 3] > 0)
DATA = [(X[i : i + 64], Y[i : i + 64]) for i in range(0, 512, 64)]


def mlp(width: int = 24) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, 3))


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    model = mlp()
    fine_tune(framework_of(model), model, DATA, Fit(20, 1e-2))
    return model


def loss(model: nn.Module) -> float:
    made = torch.from_numpy(framework_of(model).predict(model, X))
    return float(nn.functional.cross_entropy(made, torch.from_numpy(Y)))


@pytest.mark.parametrize("mode", ["int4", "int8", "float8"])
def test_training_under_simulated_storage_does_what_storage_will_do(trained, mode: str) -> None:
    plain = quantize(trained, mode)
    tuned, notes = quantized(trained, mode, calibration=DATA, fit=Fit(10, 3e-3))
    assert any(f"under simulated {mode}" in note for note in notes)
    assert loss(tuned) < loss(plain)
    stored = [p.dtype for p in tuned.parameters() if p.ndim > 1 and p.shape[-1] != 1]
    assert torch.float32 not in stored
    assert not any("parametrizations" in name for name, _ in trained.named_parameters())


def test_modes_that_cannot_be_simulated_say_so(trained) -> None:
    with pytest.raises(InvalidInput, match="not int8-dynamic"):
        quantize(trained, "int8-dynamic", calibration=DATA, fit=Fit(1))
    with pytest.raises(InvalidInput, match="needs data"):
        quantize(trained, "int4", fit=Fit(1))


def test_a_teacher_is_quantized_when_memory_asks_for_it(trained, tmp_path: Path) -> None:
    assert choose_mode(opened_here=True, student_nbytes=100, free=399) == "int8"
    assert choose_mode(opened_here=True, student_nbytes=100, free=401) is None
    assert choose_mode(opened_here=False, student_nbytes=100, free=0) is None
    path = save_model(trained, tmp_path / "teacher.pt2", X)
    told: list[dict] = []
    stop = events.listen(lambda event: told.append(event.values) if event.kind == "shrink.teacher" else None)
    try:
        big, student = mlp(300_000), mlp(16)
        with limit(Meter().read().nbytes + 45_000_000):  # room for the least data pipe, none to train a large student
            distill(path, big, DATA[:1], fit=Fit(0), cache=Teacher(cache=False))
        del big
        assert [values["mode"] for values in told] == ["int8"]
        distill(path, student, DATA, alpha=0.9, fit=Fit(15, 1e-2), cache=Teacher(cache=False))
    finally:
        stop()
    assert len(told) == 1  # with room there is no need
    framework = framework_of(student)
    assert score(lambda x: framework.predict(student, x), DATA).value > 0.8


def test_a_quantized_teacher_teaches_nearly_as_well(trained) -> None:
    found = {}
    for mode in (None, "int8"):
        student = mlp(16)
        distill(trained, student, DATA, alpha=0.9, fit=Fit(15, 1e-2), cache=Teacher(quantize=mode))
        framework = framework_of(student)
        found[mode] = score(lambda x, k=framework, s=student: k.predict(s, x), DATA).value
    assert found["int8"] > found[None] - 0.05


def test_masks_and_optimizer_survive_a_checkpoint_on_disk(tmp_path: Path) -> None:
    goals = {"": Loss("classify")}

    def run(stop: int | None) -> nn.Module:
        model = mlp()
        trainer, pruner = (
            framework_of(model).trainer(model, goals, 1e-2),
            Pruner(model, Schedule(0.6, 0, 6, 2), scope="global"),
        )
        for number, (x, y) in enumerate(DATA):
            if number == stop:
                torch.save({"model": model.state_dict(), "adam": trainer.optimizer.state_dict()}, tmp_path / "c.pt")
                pruner.save(tmp_path / "masks.npz")
                state, model = torch.load(tmp_path / "c.pt"), mlp()
                model.load_state_dict(state["model"])
                trainer = framework_of(model).trainer(model, goals, 1e-2)
                trainer.optimizer.load_state_dict(state["adam"])
                pruner = Pruner.resume(model, tmp_path / "masks.npz")
                assert pruner.masks
            trainer.step(x, y, None)
            pruner.step()
            if number == stop:  # Adam's momentum moves pruned weights; the masks put them back
                assert all((k.read()[~pruner.masks[k.name]] == 0).all() for k in pruner.kernels.values())
        pruner.strip()
        return model

    for one, other in zip(run(None).parameters(), run(5).parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_teacher_that_the_command_opened_is_gone_when_the_student_trains(tmp_path: Path) -> None:
    source = (
        "import weakref\nfrom torch import nn\nmade = []\n"
        "def build():\n    net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3))\n"
        "    made.append(weakref.ref(net))\n    return net\n"
    )
    (tmp_path / "alone.py").write_text(source)
    alive: list[bool] = []

    def look(event: Event) -> None:
        if event.kind == "shrink.epoch":
            [module] = [m for name, m in sys.modules.items() if name.startswith("_penstock_user_alone_")]
            alive.append(module.made[0]() is not None)

    stop = events.listen(look)
    try:
        shrink(f"{tmp_path}/alone.py:build", out=tmp_path / "small.pt2", data=DATA, width=0.5, distill=True, epochs=2)
    finally:
        stop()
    assert alive == [False, False]
