"""Keras 3 models on any of the three backends.

Covers: predicting, training one step at a time, kernels, copies.
Does not cover: graph surgery (trace.py), quantization (quantize.py).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from penstock.compress.data import Array, Inputs, Outputs, arrays, bare
from penstock.compress.framework import Goals, Loss, PrunableWeight, Trainer
from penstock.compress.keras.trace import arrays_of, graph_of, rebuild_keras, trace_keras
from penstock.compress.thin.channels import Mask, Trace
from penstock.core.errors import InvalidInput
from penstock.guard.keras.private import all_layers

KERNEL_AXES = {"kernel": -2, "depthwise_kernel": -2, "pointwise_kernel": -2, "recurrent_kernel": -2}


class KerasModels:
    """`Framework` for Keras."""

    name = "keras"

    def predict(self, model: Any, x: Inputs) -> Outputs:
        """Outputs in inference mode, without touching how the model was compiled."""
        import keras

        made = _named(model, model.predict_on_batch(list(x) if isinstance(x, tuple) else x))
        return bare({name: np.asarray(keras.ops.convert_to_numpy(part)) for name, part in made.items()})

    def endings(self, model: Any) -> dict[str, str]:
        """The last activation before each output of a graph; empty for a subclassed model."""
        try:
            graph = graph_of(model)
        except InvalidInput:
            return {}
        ends = [_ending(tensor) for tensor in graph.outputs]
        return {"": ends[0]} if len(ends) == 1 else dict(zip(_names(model, len(ends)), ends, strict=True))

    def trainer(self, model: Any, goals: Goals, learning_rate: float) -> Trainer:
        return _KerasTrainer(model, goals, learning_rate)

    def kernels(self, model: Any) -> list[PrunableWeight]:
        """Every trainable kernel; biases, norms and embeddings stay dense."""
        sums = {id(layer.kernel): _summed_axis(layer.equation) for layer in _einsums(model)}
        found = []
        for variable in model.trainable_variables:
            axis = sums.get(id(variable), KERNEL_AXES.get(variable.path.rpartition("/")[2]))
            if axis is not None and len(variable.shape) >= 2:
                found.append(_kernel(variable, axis))
        return found

    def parameters(self, model: Any) -> int:
        return int(model.count_params())

    def copy(self, model: Any) -> Any:
        """A plain, uncompiled copy with the same weights."""
        import keras

        graph_of(model)
        twin = keras.models.clone_model(model)
        twin.set_weights(model.get_weights())
        return twin

    def trace(self, model: Any, example: Inputs | None) -> Trace:
        return trace_keras(model)

    def arrays(self, model: Any) -> dict[Hashable, Array]:
        return arrays_of(model)

    def rebuild(self, model: Any, trace: Trace, keep: Mask, *, copy_weights: bool) -> Any:
        return rebuild_keras(model, trace, keep, copy_weights=copy_weights)


def _kernel(variable: Any, axis: int) -> PrunableWeight:
    return PrunableWeight(variable.path, axis, tuple(variable.shape), lambda: _numpy(variable), variable.assign)


def _numpy(variable: Any) -> Array:
    import keras

    return np.array(keras.ops.convert_to_numpy(variable.value))


def _names(model: Any, count: int) -> list[str]:
    """Names of several outputs, in their order; numbers where the model has no names that tell them apart."""
    names = list(getattr(model, "output_names", None) or [])
    return names if len(set(names)) == count else [str(i) for i in range(count)]


def _named(model: Any, made: Any) -> dict[str, Any]:
    """What a model gave, by the names of its outputs; the only one is named ''."""
    if isinstance(made, dict):
        return dict(made) if len(made) > 1 else {"": next(iter(made.values()))}
    if isinstance(made, (list, tuple)):
        return dict(zip(_names(model, len(made)), made, strict=True)) if len(made) > 1 else {"": made[0]}
    return {"": made}


def _ending(tensor: Any) -> str:
    """How an output ends, looked up inside nested models too."""
    history = tensor._keras_history
    op = history.operation
    if hasattr(op, "_nodes_by_depth") or hasattr(op, "_functional"):
        return _ending(graph_of(op).outputs[history.tensor_index])
    name = str(getattr(getattr(op, "activation", None), "__name__", type(op).__name__)).lower()
    return name if name in ("softmax", "sigmoid") else "linear"


def _einsums(model: Any) -> list[Any]:
    return [layer for layer in all_layers(model) if type(layer).__name__ == "EinsumDense"]


def _summed_axis(equation: str) -> int:
    """The last kernel axis that an EinsumDense layer sums over: its inputs."""
    left, _, made = equation.partition("->")
    kernel = left.partition(",")[2]
    return max(axis for axis, letter in enumerate(kernel) if letter not in made)


class _KerasTrainer:
    """Trains a model through a shell around it, so that the model itself stays uncompiled and saves plainly."""

    def __init__(self, model: Any, goals: Goals, learning_rate: float) -> None:
        losses = {name: _keras_loss(loss) for name, loss in goals.items()}
        self.shell = _shell(model)
        self.shell.compile(optimizer=_optimizer(learning_rate), loss=losses if len(losses) > 1 else losses[""])

    def step(self, x: Inputs, y: Outputs, soft: Outputs | None) -> float:
        # Labels and the teacher's outputs travel as one array: then a plain Keras loss serves all three backends.
        taught = {} if soft is None else arrays(soft)
        given = {name: _side_by_side(part, taught.get(name)) for name, part in arrays(y).items()}
        inputs = list(x) if isinstance(x, tuple) else x
        return float(self.shell.train_on_batch(inputs, bare(given), return_dict=True)["loss"])


def _side_by_side(y: Array, soft: Array | None) -> Array:
    if soft is None:
        return y
    known = y.reshape(*soft.shape[:-1], -1).astype(np.float32)
    return np.concatenate([known, soft.astype(np.float32)], axis=-1)


def _optimizer(learning_rate: float) -> Any:
    import keras

    return keras.optimizers.Adam(learning_rate)


def _shell(model: Any) -> Any:
    import keras

    class Shell(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def call(self, inputs: Any, training: bool | None = None) -> Any:
            made = _named(self.inner, self.inner(inputs, training=training))
            return made if len(made) > 1 else made[""]

    return Shell()


def _keras_loss(loss: Loss) -> Any:
    from keras import ops

    def logits_of(outputs: Any) -> Any:
        outputs = ops.cast(outputs, "float32")
        if loss.output == "probabilities":
            safe = ops.clip(outputs, 1e-7, 1.0 - 1e-7)
            outputs = ops.log(safe) if outputs.shape[-1] != 1 else ops.log(safe / (1.0 - safe))
        # One output means two classes: softmax over (0, z) is the sigmoid of z.
        return ops.concatenate([ops.zeros_like(outputs), outputs], axis=-1) if outputs.shape[-1] == 1 else outputs

    def classify(target: Any, outputs: Any) -> Any:
        wide = logits_of(outputs)
        known = ops.cast(target[..., 0] if loss.alpha else ops.reshape(target, ops.shape(wide)[:-1]), "int32")
        logs = ops.log_softmax(wide, axis=-1)
        hard = -ops.sum(ops.one_hot(known, wide.shape[-1], dtype="float32") * logs, axis=-1)
        if not loss.alpha:
            return hard
        heat = loss.temperature
        taught = ops.cast(target[..., 1:], "float32")
        taught = ops.concatenate([ops.zeros_like(taught), taught], axis=-1) if taught.shape[-1] == 1 else taught
        said = ops.log_softmax(taught / heat, axis=-1)
        soft = ops.sum(ops.exp(said) * (said - ops.log_softmax(wide / heat, axis=-1)), axis=-1)
        return (1.0 - loss.alpha) * hard + loss.alpha * heat**2 * soft

    def regress(target: Any, outputs: Any) -> Any:
        outputs, target = ops.cast(outputs, "float32"), ops.cast(target, "float32")
        width = outputs.shape[-1]
        if not loss.alpha:
            return ops.mean(ops.square(ops.reshape(target, ops.shape(outputs)) - outputs), axis=-1)
        hard = ops.mean(ops.square(target[..., :width] - outputs), axis=-1)
        return (1.0 - loss.alpha) * hard + loss.alpha * ops.mean(ops.square(target[..., width:] - outputs), axis=-1)

    chosen = classify if loss.task == "classify" else regress
    return lambda target, outputs: loss.weight * chosen(target, outputs)
