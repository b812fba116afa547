"""Models of several inputs and outputs through every way: a loss, a lesson and a score for each output."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.compress import Fit, distill, prune, quantize, remove_channels, score, width
from penstock.compress.data import arrays, by_output
from penstock.compress.framework import framework_of
from penstock.compress.result.score import Score, together
from penstock.compress.train import fine_tune
from penstock.core.errors import InvalidInput

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(256, 4)).astype(np.float32), RNG.normal(size=(256, 3)).astype(np.float32)
KIND = (A[:, 0] + B[:, 0] > 0).astype(np.int64)
AGE = (2 * A[:, 1] - B[:, 1]).astype(np.float32)[:, None]


def batches(form: str) -> list:
    """The same rows with labels as a tuple or by name."""
    made = []
    for start in range(0, 256, 64):
        part = slice(start, start + 64)
        y = (KIND[part], AGE[part]) if form == "tuple" else {"age": AGE[part], "kind": KIND[part]}
        made.append(((A[part], B[part]), y))
    return made


def torch_model(width: int = 16):
    torch = pytest.importorskip("torch")

    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = torch.nn.Linear(7, width)
            self.inner, self.kind, self.age = (torch.nn.Linear(width, n) for n in (width, 2, 1))

        def forward(self, a, b):
            x = torch.relu(self.trunk(torch.cat([a, b], 1)))
            x = x + torch.relu(self.inner(x))
            return {"kind": self.kind(x), "age": self.age(x)}

    torch.manual_seed(0)
    return Two()


def keras_model(width: int = 16):
    keras = pytest.importorskip("keras")
    layers = keras.layers
    keras.utils.set_random_seed(0)
    a, b = keras.Input((4,), name="second"), keras.Input((3,), name="first")
    x = layers.Dense(width, activation="relu")(layers.Concatenate()([a, b]))
    x = layers.Add()([x, layers.Dense(width, activation="relu")(x)])
    ends = [layers.Dense(2, activation="softmax", name="kind")(x), layers.Dense(1, name="age")(x)]
    return keras.Model([a, b], ends)


@pytest.fixture(scope="module", params=[torch_model, keras_model], ids=["torch", "keras"])
def trained(request):
    model = request.param()
    losses = fine_tune(framework_of(model), model, batches("tuple"), Fit(20, 2e-2))
    assert losses[-1] < 0.5 * losses[0]
    return request.param, model


def judged(model, form: str = "tuple") -> Score:
    framework = framework_of(model)
    return score(lambda x: framework.predict(model, x), batches(form))


def test_every_output_has_its_score(trained) -> None:
    result = judged(trained[1])
    assert list(result.parts) == ["kind", "age"]
    assert (result.parts["kind"].metric, result.parts["age"].metric) == ("accuracy", "mse")
    assert result.parts["kind"].value > 0.9
    assert result.parts["age"].value < 0.5
    assert result.metric == "mean of accuracy and r2"
    assert result.value == pytest.approx((result.parts["kind"].value + (result.parts["age"].r2 or 0)) / 2)
    assert judged(trained[1], "names").parts == result.parts


def test_width_and_channels_keep_both_outputs(trained) -> None:
    _, model = trained
    example = (A[:4], B[:4])
    same, small = width(model, 1.0, example=example), remove_channels(model, 0.5, example=example)
    framework = framework_of(model)
    for name, part in arrays(framework.predict(same, example)).items():
        np.testing.assert_allclose(part, framework.predict(model, example)[name], atol=1e-5)
    assert framework.parameters(small) < 0.5 * framework.parameters(model)
    fine_tune(framework, small, batches("names"), Fit(10, 2e-2))
    assert judged(small).parts["kind"].value > 0.85


def test_pruning_and_quantizing_keep_both_outputs(trained) -> None:
    _, model = trained
    thin = prune(model, batches("tuple"), 0.5, fit=Fit(5, 3e-3))
    assert judged(thin).parts["kind"].value > 0.85
    small = quantize(model, "int8")
    assert judged(small).parts["kind"].value >= judged(model).parts["kind"].value - 0.03
    assert judged(small).parts["age"].value < judged(model).parts["age"].value + 0.1


@pytest.mark.parametrize("cache", [True, False], ids=["stored", "live"])
def test_a_teacher_of_two_outputs_teaches_both(trained, cache) -> None:
    build, model = trained
    student = build(8)
    # Labels that say nothing: what the student knows afterwards, it has from the teacher.
    silent = [(x, (np.zeros_like(y[0]), np.zeros_like(y[1]))) for x, y in batches("tuple")]
    losses = distill(model, student, silent, alpha=1.0, fit=Fit(30, 2e-2), cache=cache)
    assert losses[-1] < losses[0]
    assert judged(student).parts["kind"].value > 0.85
    assert judged(student).parts["age"].value < 1.0


def test_a_loss_weight_of_zero_leaves_an_output_untaught(trained) -> None:
    build, _ = trained
    model = build()
    fine_tune(framework_of(model), model, batches("tuple"), Fit(20, 2e-2, loss_weights={"age": 0.0}))
    assert judged(model).parts["kind"].value > 0.9
    assert judged(model).parts["age"].value > 1.0
    with pytest.raises(InvalidInput, match="'aeg'"):
        fine_tune(framework_of(model), model, batches("tuple"), Fit(1, loss_weights={"aeg": 1.0}))


def test_labels_that_do_not_agree_are_refused(trained) -> None:
    framework, model = framework_of(trained[1]), trained[1]
    with pytest.raises(InvalidInput, match="one array; the model gives kind, age"):
        fine_tune(framework, model, [(x, y[0]) for x, y in batches("tuple")], Fit(1))
    with pytest.raises(InvalidInput, match="age, sort"):
        fine_tune(framework, model, [(x, {"age": y[1], "sort": y[0]}) for x, y in batches("tuple")], Fit(1))
    with pytest.raises(InvalidInput, match="63 labels of output '1'"):
        fine_tune(framework, model, [(x, (y[0], y[1][:63])) for x, y in batches("tuple")], Fit(1))


def test_parts_are_matched_by_name_before_order() -> None:
    assert list(by_output({"b": B, "a": A}, ["a", "b"])) == ["a", "b"]
    assert by_output((A, B), ["x", "y"])["y"] is B
    same = together({"a": Score("mse", 1.0, 4), "b": Score("mse", 3.0, 4)})
    assert (same.metric, same.value, same.merit) == ("mean mse", 2.0, -2.0)


def test_static_int8_takes_two_inputs() -> None:
    model = torch_model()
    fine_tune(framework_of(model), model, batches("tuple"), Fit(20, 2e-2))
    small = quantize(model, "int8-static", calibration=batches("tuple"))
    assert judged(small).parts["kind"].value > 0.85
    with pytest.raises(InvalidInput, match="by position"):
        quantize(model, "int8-static", calibration=[({"a": A, "b": B}, (KIND, AGE))])
