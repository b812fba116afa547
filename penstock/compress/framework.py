"""What shrinking asks of a framework.

Covers: the protocol, the loss in words, and finding the framework a model belongs to.
Does not cover: any framework (compress/keras/framework.py, compress/torch/framework.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from penstock.compress.data import Array, Inputs, Outputs, Task
from penstock.compress.thin.channels import Mask, Trace
from penstock.core.errors import InvalidInput

Output = Literal["logits", "probabilities"]


@dataclass(frozen=True)
class Loss:
    """What one output is trained towards. `alpha` is the teacher's share (0: labels only), `weight` its own share."""

    task: Task
    output: Output = "logits"
    temperature: float = 1.0
    alpha: float = 0.0
    weight: float = 1.0


Goals = Mapping[str, Loss]
"""A loss for every output of a model, by its name; the name of an only output is ''."""


@dataclass(frozen=True)
class PrunableWeight:
    """One weight that pruning may thin. `axis` is that of its inputs, along which N:M groups lie."""

    name: str
    axis: int
    shape: tuple[int, ...]
    read: Callable[[], Array]
    write: Callable[[Array], None]

    @property
    def size(self) -> int:
        """How many weights it holds."""
        return math.prod(self.shape)


class Trainer(Protocol):
    """Takes one optimizer step at a time."""

    def step(self, x: Inputs, y: Outputs, soft: Outputs | None) -> float:
        """One step on one batch; `soft` holds the teacher's outputs. Returns the loss."""


class Framework(Protocol):
    """One framework's way of running, training, cutting and copying a model."""

    name: str

    def predict(self, model: Any, x: Inputs) -> Outputs: ...

    def endings(self, model: Any) -> dict[str, str]:
        """'softmax', 'sigmoid' or 'linear' for each output where the model says how it ends; else empty."""

    def trainer(self, model: Any, goals: Goals, learning_rate: float) -> Trainer: ...

    def kernels(self, model: Any) -> list[PrunableWeight]: ...

    def parameters(self, model: Any) -> int: ...

    def copy(self, model: Any) -> Any: ...

    def trace(self, model: Any, example: Inputs | None) -> Trace: ...

    def arrays(self, model: Any) -> dict[Hashable, Array]: ...

    def rebuild(self, model: Any, trace: Trace, keep: Mask, *, copy_weights: bool) -> Any: ...


def framework_of(model: object) -> Framework:
    """The framework of a model, found without importing the ones it does not belong to."""
    packages = {kind.__module__.partition(".")[0] for kind in type(model).__mro__}
    # A Keras model on the torch backend is a torch module as well, so Keras is asked first.
    if "keras" in packages:
        from penstock.compress.keras.framework import KerasModels

        return KerasModels()
    if "torch" in packages:
        from penstock.compress.torch.framework import TorchModels

        return TorchModels()
    raise InvalidInput(
        f"A model must be a Keras model or a torch module, not {type(model).__name__}. "
        "Open files with open_model('model.keras')."
    )
