from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from penstock.compress import (  # noqa: E402
    Fit,
    Pruner,
    Schedule,
    distill,
    left_alone,
    open_model,
    prune,
    quantize,
    remove_channels,
    save_model,
    width,
)  # fmt: skip
from penstock.compress.execute import Shrinking  # noqa: E402
from penstock.compress.framework import framework_of  # noqa: E402
from penstock.compress.recipe import Recipe  # noqa: E402
from penstock.compress.result.score import Score, score  # noqa: E402
from penstock.compress.train import fine_tune  # noqa: E402
from penstock.core.errors import BadData, InvalidInput, NotFound  # noqa: E402


class Residual(nn.Module):
    """A residual add, a depthwise convolution, a concatenation and a flatten."""

    def __init__(self, flat: str = "flatten") -> None:
        super().__init__()
        self.flat = flat
        self.stem, self.norm = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.inner = nn.Conv2d(16, 16, 3, padding=1)
        self.depth, self.point = nn.Conv2d(16, 32, 3, groups=16, padding=1), nn.Conv2d(32, 8, 1)
        self.hidden, self.out = nn.Linear(24 * 16, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.norm(self.stem(x)))
        x = x + self.inner(x)
        x = torch.cat([x, self.point(self.depth(x))], 1)
        x = F.max_pool2d(x, 2)
        x = x.flatten(1) if self.flat == "flatten" else x.view(-1, 384)
        return self.out(torch.relu(self.hidden(x)))


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    train = [(x[i : i + 64], y[i : i + 64]) for i in range(0, 1024, 64)]
    return train, [(x[1280:], y[1280:])]


def mlp(width: int = 64) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


@pytest.fixture(scope="module")
def trained(digits):
    torch.manual_seed(0)
    model = mlp()
    fine_tune(framework_of(model), model, digits[0], Fit(6, 3e-3))
    return model


def judged(model, test) -> Score:
    framework = framework_of(model)
    return score(lambda x: framework.predict(model, x), test)


def test_removing_dead_channels_changes_nothing() -> None:
    torch.manual_seed(0)
    model = Residual().eval()
    x = torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        for layer, half in ((model.stem, 8), (model.norm, 8), (model.inner, 8), (model.point, 4), (model.hidden, 16)):
            layer.weight[:half] = 0
            layer.bias[:half] = 0
        model.depth.bias[:16] = 0  # else a dead channel comes back as a constant
    small = remove_channels(model, 0.5, example=x.numpy())
    assert small.stem.out_channels == 8
    assert small.depth.groups == 8
    assert torch.allclose(small(x), model(x), atol=1e-5)
    assert model.stem.out_channels == 16  # the original is untouched


def test_a_hard_coded_view_keeps_its_channels_and_is_named() -> None:
    model, x = Residual("view"), np.zeros((2, 1, 8, 8), np.float32)
    notes = left_alone(model, x)
    assert len(notes) == 1
    assert "view" in notes[0]
    small = width(model, 0.5, example=x)
    assert small.hidden.in_features == 384
    assert small.hidden.out_features == 16
    assert small(torch.from_numpy(x)).shape == (2, 10)


def test_fresh_width_has_new_weights_of_the_same_shape() -> None:
    x = np.zeros((2, 1, 8, 8), np.float32)
    model = Residual()
    fresh, important = width(model, 0.5, init="fresh", example=x), width(model, 0.5, example=x)
    assert fresh.inner.weight.shape == important.inner.weight.shape == (8, 8, 3, 3)
    assert not torch.equal(fresh.inner.weight, important.inner.weight)


def test_forward_with_decisions_on_values_is_refused() -> None:
    class Branching(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(InvalidInput, match="Branching cannot be traced"):
        width(Branching(), 0.5, example=np.zeros((2, 3), np.float32))
    with pytest.raises(InvalidInput, match="needs data"):
        width(mlp(), 0.5)


@pytest.mark.parametrize(("mode", "most"), [("float16", 1e-3), ("int8", 2e-2), ("float8", 0.1), ("int4", 0.2)])
def test_stored_weights_are_near_and_plain_torch_reads_them(trained, digits, tmp_path: Path, mode, most) -> None:
    x = digits[1][0][0]
    small = quantize(trained, mode)
    exact, near = framework_of(trained).predict(trained, x), framework_of(small).predict(small, x)
    assert np.abs(exact - near).max() <= most * np.abs(exact).max()
    path = save_model(small, tmp_path / "small.pt2", x)
    assert b"penstock" not in path.read_bytes()
    again = torch.export.load(path).module()(torch.from_numpy(x[:5])).detach().numpy()
    assert np.allclose(again, near[:5], atol=1e-5)


def test_a_program_is_quantized_again_without_unpacking_weights_twice(trained, digits, tmp_path: Path) -> None:
    x = digits[1][0][0]
    wide = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    program = open_model(save_model(wide, tmp_path / "program.pt2", x))
    path = save_model(quantize(program, "int4"), tmp_path / "tiny.pt2", x)
    assert path.stat().st_size < 0.6 * (tmp_path / "program.pt2").stat().st_size
    targets = [str(node.target) for node in torch.export.load(path).graph.nodes]
    assert sum("rshift" in target for target in targets) == 2  # one for each weight
    assert not any("assert_tensor_metadata" in target for target in targets)


def test_zeros_are_counted_and_layers_that_stay_dense_are_named(digits, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    shrinking = Shrinking(net, tmp_path / "small.pt2", digits[0][:4], tmp_path)
    thin = shrinking.train(copy.deepcopy(net), Recipe(n_m=(2, 4)))
    kernels = [thin[0].weight, thin[3].weight]
    zeros = sum(int((weight == 0).sum()) for weight in kernels) / sum(weight.numel() for weight in kernels)
    assert f"{zeros:.0%} of 2,952 kernel weights are zero" in shrinking.notes[0]
    assert shrinking.notes[1] == "2:4 leaves 0.weight dense: 4 does not divide their inputs."


def test_int4_packs_odd_rows() -> None:
    layer = nn.Sequential(nn.Linear(37, 3))
    small = quantize(layer, "int4")
    assert small[0].parametrizations.weight.original0.dtype == torch.uint8
    assert (small[0].weight - layer[0].weight).abs().max() < layer[0].weight.abs().max() / 7


def test_calibrated_int8_keeps_its_accuracy_and_needs_calibration(trained, digits, tmp_path: Path) -> None:
    train, test = digits
    with pytest.raises(InvalidInput, match="calibration"):
        quantize(trained, "int8-static")
    small = quantize(trained, "int8-static", calibration=train[:4])
    assert judged(small, test).value >= judged(trained, test).value - 0.02
    path = save_model(small, tmp_path / "small.pt", test[0][0])
    assert np.allclose(torch.jit.load(path)(torch.from_numpy(test[0][0])), small(torch.from_numpy(test[0][0])))
    tuned = quantize(trained, "int8-static", calibration=train, fit=Fit(1, 1e-4))
    assert judged(tuned, test).value >= judged(trained, test).value - 0.02


def test_unknown_modes_are_refused_with_those_that_exist(trained) -> None:
    with pytest.raises(InvalidInput, match="int8-static"):
        quantize(trained, "int3")


def test_pruning_while_training_reaches_its_sparsity(trained, digits) -> None:
    small = prune(trained, digits[0], 0.6, fit=Fit(2, 3e-3))
    weights = [p for p in small.parameters() if p.ndim > 1]
    assert all(abs(float((w == 0).float().mean()) - 0.6) < 0.01 for w in weights)
    assert judged(small, digits[1]).value > 0.8
    assert not any((p == 0).float().mean() > 0.5 for p in trained.parameters())


def test_n_m_pruning_holds_in_every_group(trained, digits) -> None:
    small = prune(trained, digits[0], fit=Fit(1), n_m=(2, 4))
    groups = (small[1].weight != 0).reshape(-1, 4).sum(1)
    assert (groups <= 2).all()


def test_masks_survive_saving_and_resuming(trained, digits, tmp_path: Path) -> None:
    def run(stop: int | None) -> nn.Module:
        model = copy.deepcopy(trained)
        pruner, framework = Pruner(model, Schedule(0.7, 0, 8, 2)), framework_of(model)
        for number, (x, y) in enumerate(digits[0]):
            if number == stop:
                pruner.save(tmp_path / "masks.npz")
                model = copy.deepcopy(model)
                pruner = Pruner.resume(model, tmp_path / "masks.npz")
                assert pruner.steps == stop
            framework.trainer(model, {"": LOSS}, 1e-3).step(x, y, None)
            pruner.step()
        pruner.strip()
        return model

    from penstock.compress.framework import Loss

    LOSS = Loss("classify")
    for one, other in zip(run(None).parameters(), run(5).parameters(), strict=True):
        assert torch.equal(one, other)


def test_masks_of_another_model_are_refused(trained, tmp_path: Path) -> None:
    pruner = Pruner(trained, Schedule(0.5))
    pruner._draw(0.5)
    pruner.save(tmp_path / "masks.npz")
    with pytest.raises(InvalidInput, match="where this model has"):
        Pruner.resume(mlp(12), tmp_path / "masks.npz")
    (tmp_path / "masks.npz").write_bytes(b"x")
    with pytest.raises(BadData):
        Pruner.resume(trained, tmp_path / "masks.npz")


def test_a_stored_teacher_teaches_as_a_live_one(trained, digits, tmp_path: Path) -> None:
    losses = []
    for cache in (False, True, tmp_path / "logits", tmp_path / "logits"):
        torch.manual_seed(1)
        student = mlp(16)
        losses.append(distill(trained, student, digits[0], fit=Fit(2), cache=cache))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[2] == losses[3]
    assert losses[0][1] < losses[0][0]
    with pytest.raises(InvalidInput, match="another teacher"):
        distill(mlp(), mlp(16), digits[0], cache=tmp_path / "logits")


def test_alpha_one_hears_only_the_teacher(trained, digits) -> None:
    wrong = [(x, (y + 1) % 10) for x, y in digits[0]]
    torch.manual_seed(0)
    student = mlp(64)
    distill(trained, student, wrong, alpha=1.0, fit=Fit(4, 3e-3))
    assert judged(student, digits[1]).value > 0.7


def test_disagreeing_outputs_and_options_are_refused(trained, digits) -> None:
    odd = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    with pytest.raises(InvalidInput, match=r"\(10,\) outputs a row and the student \(3,\)"):
        distill(trained, odd, digits[0])
    with pytest.raises(InvalidInput, match="temperature"):
        distill(trained, mlp(8), digits[0], temperature=0)
    with pytest.raises(InvalidInput, match="alpha"):
        distill(trained, mlp(8), digits[0], alpha=0)


def test_regression_distills_too() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, 4)).astype(np.float32)
    data = [(x, x @ np.array([[1.0], [2], [3], [4]], dtype=np.float32))]
    torch.manual_seed(0)
    teacher, student = nn.Sequential(nn.Linear(4, 1)), nn.Sequential(nn.Linear(4, 1))
    fine_tune(framework_of(teacher), teacher, data, Fit(200, 0.05))
    distill(teacher, student, data, alpha=0.5, fit=Fit(200, 0.05))
    assert judged(student, data).metric == "mse"
    assert judged(student, data).value < 0.1


def test_files_that_are_no_models_get_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no model at"):
        open_model(tmp_path / "none.pt2")
    for name in ("bad.pt2", "bad.pt"):
        (tmp_path / name).write_bytes(b"garbage")
        with pytest.raises(BadData, match=name):
            open_model(tmp_path / name)
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(InvalidInput, match="not a model file"):
        open_model(tmp_path / "model.bin")
    with pytest.raises(InvalidInput, match="not a SavedModel"):
        open_model(tmp_path)


def test_a_module_is_built_from_python_with_its_weights(tmp_path: Path) -> None:
    source = "from torch import nn\ndef build():\n    return nn.Linear(3, 2)\n"
    (tmp_path / "net.py").write_text(source)
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "w.pt")
    model = open_model(f"{tmp_path}/net.py:build", weights=tmp_path / "w.pt")
    assert torch.equal(model.weight, torch.load(tmp_path / "w.pt")["weight"])
    torch.save(nn.Linear(4, 2).state_dict(), tmp_path / "w.pt")
    with pytest.raises(BadData, match="not weights of build"):
        open_model(f"{tmp_path}/net.py:build", weights=tmp_path / "w.pt")
    with pytest.raises(InvalidInput, match="no function 'other'"):
        open_model(f"{tmp_path}/net.py:other")


def test_exported_programs_can_be_quantized_but_not_narrowed(trained, digits, tmp_path: Path) -> None:
    x = digits[1][0][0]
    program = open_model(save_model(trained, tmp_path / "m.pt2", x))
    with pytest.raises(InvalidInput, match="holds operations, not layers"):
        width(program, 0.5, example=x)
    small = quantize(program, "int8")
    assert judged(small, digits[1]).value >= judged(trained, digits[1]).value - 0.02


def test_models_of_no_framework_are_refused() -> None:
    with pytest.raises(InvalidInput, match="not dict"):
        width({}, 0.5)


def test_the_package_can_be_called_after_its_parts_were_imported() -> None:
    import penstock as ps

    for _ in range(2):
        with pytest.raises(InvalidInput, match="not dict"):
            ps.shrink({}, out="small.keras")
