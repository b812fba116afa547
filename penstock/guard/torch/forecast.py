"""Torch modules on their way to a probe, and as its subject.

Covers: a module, its loss and its optimizer as a pickle without large weights; the guard's steps on it; what fake
tensors say about a part that was never run.
Does not cover: measuring (guard/forecast/child.py).
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch

from penstock.core.errors import InvalidInput
from penstock.core.tree import flatten, unflatten
from penstock.guard.forecast.build import load_example
from penstock.guard.forecast.result import Setting
from penstock.guard.forecast.subject import grown, is_classes, labels_of
from penstock.guard.recovery.microbatch import Part
from penstock.guard.torch import remat as torch_remat
from penstock.guard.torch.parts import TorchOptions, TorchStepper, call_loss, to_torch

Built = tuple[torch.nn.Module, Any, Any]
LIGHT = 1 << 16
"""Float tensors from this size on travel as shapes: memory does not depend on their values."""


def pack_torch(model: torch.nn.Module, folder: Path, *, optimizer: Any, loss: Any) -> dict[str, Any]:
    """Write the model, loss and optimizer where the child finds them; they keep pointing at the same parameters."""
    file = io.BytesIO()
    try:
        _Light(file).dump((model, loss, optimizer, torch.get_num_threads()))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"{type(model).__name__}, its loss or its optimizer cannot be pickled ({error}). Name a function that "
            f"builds it instead: forecast('module.py:build', ...)."
        ) from error
    (folder / "model.pickle").write_bytes(file.getvalue())
    return {}


def packed_torch(folder: Path, spec: Mapping[str, Any]) -> TorchMaker:
    """In the child: the maker of what `pack_torch` wrote."""

    def build() -> Built:
        model, loss, optimizer, threads = pickle.loads((folder / "model.pickle").read_bytes())
        torch.set_num_threads(threads)
        return model, loss, optimizer

    return TorchMaker(build, load_example(folder))


class _Light(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        plain = type(obj) in (torch.Tensor, torch.nn.Parameter) and obj.is_leaf and obj.layout is torch.strided
        if plain and obj.is_floating_point() and obj.nbytes >= LIGHT:
            return blank, (tuple(obj.shape), obj.dtype, obj.requires_grad, type(obj) is torch.nn.Parameter)
        return super().reducer_override(obj)


def blank(shape: Sequence[int], dtype: torch.dtype, requires_grad: bool, parameter: bool) -> torch.Tensor:
    """A tensor in place of one that did not travel."""
    tensor = torch.full(tuple(shape), 0.01, dtype=dtype)
    return torch.nn.Parameter(tensor, requires_grad) if parameter else tensor.requires_grad_(requires_grad)


class TorchMaker:
    """Makes the model afresh for each setting."""

    def __init__(self, build: Callable[[], Built], example: Any) -> None:
        self._build, self._example = build, example

    def make(self, setting: Setting) -> TorchSubject | None:
        """The module in a setting; None if it has no block that could be rematerialised."""
        if self._example is None:
            raise InvalidInput("A torch module does not say what it takes. Give data, a batch, or --shape.")
        model, loss, optimizer = self._build()
        if loss is None:
            loss = torch.nn.CrossEntropyLoss() if is_classes(labels_of(self._example)) else torch.nn.MSELoss()
        model = model.cpu().train()
        if setting.remat and not torch_remat.rematerialise(model):
            return None
        return TorchSubject(model, loss, _made(optimizer, model), self._example, setting.precision or "float32")


class TorchSubject:
    """A torch module with the guard's steps."""

    framework = "torch"

    def __init__(
        self, model: torch.nn.Module, loss: Any, optimizer: torch.optim.Optimizer, example: Any, precision: str
    ) -> None:
        self.who, self.precision = type(model).__name__, precision
        self.keeps = self.at_once = False
        self._model, self._loss, self._optimizer, self._example = model, loss, optimizer, example
        self.train = TorchStepper(model, optimizer, TorchOptions(precision=precision, device="cpu"))
        self.train.loss_fn = loss
        self.evaluate = _Evaluation(model, loss)

    def state(self) -> dict[str, int]:
        """Bytes by kind; optimizer state is there after the first step."""
        params = [p for group in self._optimizer.param_groups for p in group["params"]]
        held = [*self._model.parameters(), *self._model.buffers()]
        optimizer = sum(_nbytes(v) for state in self._optimizer.state.values() for v in state.values())
        gradients = sum(_nbytes(p) for p in params if p.requires_grad)
        parameters = sum(map(_nbytes, {id(t): t for t in held}.values()))
        copies = self.train.holds()["guard"]
        return {
            "parameters": parameters,
            "gradients": gradients,
            "optimizer": optimizer,
            "copies": copies,
            "held": parameters + gradients + optimizer + copies,
        }

    def batch(self, rows: int) -> Any:
        """A batch as the user's are."""
        return grown(self._example, rows)

    def fill(self) -> object:
        """On the CPU torch keeps nothing."""
        return None

    def save(self, path: Path) -> None:
        """Write what a torch job saves: both state dicts."""
        torch.save({"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}, path)

    def compiled(self, rows: int) -> float | None:
        """Bytes of activations and temporaries of a part, by fake tensors; None where an operation cannot be faked."""
        try:
            return fake_nbytes(self._model, self._loss, self.batch(1), rows, self.train.autocast_dtype)
        except Exception:  # operations of the user's own, control flow over values: then the probes have to do
            return None


class _Evaluation:
    """A forward pass without gradients, as an evaluation loop takes it."""

    def __init__(self, model: torch.nn.Module, loss: Any) -> None:
        self._model, self._loss = model, loss

    def begin(self, parts: Sequence[Part]) -> None:
        """Nothing is summed."""

    def part(self, part: Part) -> None:
        """The loss of one part."""
        self._model.eval()
        try:
            with torch.no_grad():
                call_loss(self._loss, self._model, to_torch(part.data, torch.device("cpu")))
        finally:
            self._model.train()

    def prepare(self) -> None:
        """Nothing is reserved."""

    def apply(self) -> None:
        """Nothing changes."""


def fake_nbytes(model: torch.nn.Module, loss: Any, example: Any, rows: int, dtype: torch.dtype | None) -> float:
    """Run forward and backward with tensors that have shapes and no memory, and count."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.nn.utils.stateless import _reparametrize_module

    mode = FakeTensorMode()
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    faked = {name: _faked(mode, tensor) for name, tensor in held.items()}
    # The backward pass belongs inside: a rematerialised block asks the module for its tensors again.
    with mode, _reparametrize_module(model, faked):
        data = _fake_data(example, rows)
        tracker = MemTracker()
        tracker.track_external(*faked.values())
        with tracker:
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
                value = call_loss(loss, model, data)
            value.backward()  # type: ignore[no-untyped-call]
        peak = next(iter(tracker.get_tracker_snapshot("peak").values()))
    return float(peak["Total"]) - sum(map(_nbytes, held.values()))


def _fake_data(example: Any, rows: int) -> Any:
    tree, leaves = flatten(example)

    def leaf(name: str) -> Any:
        value = leaves[name]
        return None if value is None else torch.zeros((rows, *value.shape[1:]), dtype=_torch_dtype(value))

    return unflatten(tree, leaf)


def _torch_dtype(array: np.ndarray) -> torch.dtype:
    return torch.from_numpy(np.zeros(0, array.dtype)).dtype


def _faked(mode: Any, tensor: torch.Tensor) -> torch.Tensor:
    fake = mode.from_tensor(tensor.detach())
    return torch.nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else fake


def _made(optimizer: Any, model: torch.nn.Module) -> torch.optim.Optimizer:
    if optimizer is None:
        return torch.optim.AdamW(model.parameters())
    if isinstance(optimizer, torch.optim.Optimizer):
        return optimizer
    if not callable(optimizer):
        raise InvalidInput(
            f"The optimizer is a {type(optimizer).__name__}; give a torch optimizer, or a function of the parameters "
            f"that makes one, such as torch.optim.AdamW."
        )
    made = optimizer(model.parameters())
    if not isinstance(made, torch.optim.Optimizer):
        raise InvalidInput(f"optimizer(parameters) returned a {type(made).__name__}, not a torch optimizer.")
    return made


def _nbytes(value: Any) -> int:
    return value.nbytes if isinstance(value, torch.Tensor) else 0
