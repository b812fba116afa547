"""Keras on the torch backend: gradients by `backward`, summed in `.grad`.

Covers: the backend operations that step.py asks for.
Does not cover: what the loss is (parts.py).
"""

from __future__ import annotations

from typing import Any

import keras
import torch

from penstock.core.errors import InvalidInput
from penstock.guard.keras.backends.torch_units import KerasUnits, in_pieces
from penstock.guard.keras.parts import Program, Values
from penstock.guard.ranks.agree import Ranks
from penstock.guard.recovery.undo.roll_forward import roll_forward
from penstock.guard.torch.parts import to_torch
from penstock.guard.torch.state import Generators, WholeCopy


class TorchBackend:
    """Runs a Keras model's parts with torch."""

    whole_step = None
    """Nothing is compiled: one call would save nothing."""

    replicas = 1

    def __init__(self, model: keras.Model) -> None:
        if model.jit_compile:
            raise InvalidInput("jit_compile=True with the torch backend is not supported. Compile without it.")
        self.model = model
        self.program = Program(model)
        self._generators = Generators({torch.device(v.value.device) for v in self.program.trainable})
        self._whole = WholeCopy(model.name)
        self._units: KerasUnits | None = None
        self._in_units = self._prepared = False

    @property
    def measurable(self) -> bool:
        """On the CPU a part's tensors are this process's memory."""
        return all(torch.device(v.value.device).type == "cpu" for v in self.program.trainable)

    def piece_rows(self, rows: int) -> list[int]:
        """A part is computed whole."""
        return [rows]

    def data(self, batch: Any) -> Any:
        """A part's arrays as tensors on the model's device."""
        device = self.model.trainable_variables[0].value.device if self.model.trainable_variables else "cpu"
        return to_torch(batch, torch.device(device))

    def begin(self) -> None:
        """Forget the gradients; remember the generator, from which Keras' dropout draws on torch."""
        self._clear()
        self._generators.save()

    def _clear(self) -> None:
        for variable in self.program.trainable:
            variable.value.grad = None

    def gradients(self, state: Values, data: Any, ratios: Any, weight: float) -> tuple[Any, dict[str, Any], Values]:
        """Add a part's weighted gradients to `.grad`."""
        weights = [variable.value for variable in self.program.trainable]
        self.model.train()
        try:
            loss, logs, state = self.program.loss(weights, state, data, self._ratios(ratios), training=True)
        finally:
            self.model.eval()
        total = self.model.optimizer.scale_loss(loss)
        (total if weight == 1.0 else total * weight).backward()
        return loss.detach() * weight, logs, state

    def evaluate(self, state: Values, data: Any, ratios: Any) -> tuple[dict[str, Any], Values]:
        """Metrics of a part without training."""
        weights = [variable.value for variable in self.program.trainable]
        with torch.no_grad():
            _, logs, state = self.program.loss(weights, state, data, self._ratios(ratios), training=False)
        return logs, state

    def counts(self, state: Values, data: Any, training: bool) -> Any:
        """What the losses divide by in this part."""
        weights = [variable.value for variable in self.program.trainable]
        with torch.no_grad():
            return self.program.counts(weights, state, data, training).cpu().numpy()

    def predict(self, x: Any) -> Any:
        """Outputs as NumPy arrays."""
        weights = [variable.value for variable in self.program.trainable]
        with torch.no_grad():
            out = self.program.predict(weights, self.program.state_values(), self.data(x))
        return keras.tree.map_structure(lambda leaf: leaf.float().cpu().numpy(), out)

    def prepare(self) -> None:
        """Reserve what the step needs: a small buffer where it can be taken in units, else a copy of everything."""
        optimizer, variables = self.model.optimizer, self.program.trainable
        gradients = [variable.value.grad for variable in variables]
        self._in_units, self._prepared = in_pieces(optimizer), True
        if self._in_units:
            self._units = self._units or KerasUnits(optimizer)
            self._units.prepare(gradients, variables)
        else:
            self._whole.save([v.value for v in [*variables, *optimizer.variables]])

    def apply(self, state: Values) -> None:
        """One optimizer step from the summed gradients."""
        if not self._prepared:
            self.prepare()
        if self._in_units and self._units is not None:
            roll_forward(self._units.units, self._units, who=type(self.model.optimizer).__name__)
        else:
            variables = self.program.trainable
            with torch.no_grad():
                self.model.optimizer.apply([variable.value.grad for variable in variables], variables)
        self._done()
        self._clear()
        self.commit(state)  # into tensors that are there: nothing that could fail for lack of memory

    def commit(self, state: Values) -> None:
        """Write metrics, statistics and seeds back."""
        with torch.no_grad():
            for variable, value in zip(self.program.state, state, strict=True):
                variable.assign(value)

    def undo(self) -> None:
        """Put a torn optimizer step and the generator back."""
        self._clear()
        self._generators.restore()
        self._whole.restore()
        self._done()

    def _done(self) -> None:
        self._prepared = False
        self._whole.forget()
        if self._units is not None:
            self._units.done()

    def add_ranks(self, ranks: Ranks, share: float) -> None:
        """Add up the gradients of all ranks; a rank without rows has none yet."""
        weights = [variable.value for variable in self.program.trainable]
        for weight in weights:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        ranks.add([weight.grad for weight in weights], share)

    def free(self) -> None:
        """Give cached device memory back."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def lean(self) -> bool:
        """Keep copies of everything in a file from now on."""
        return self._whole.lean()

    @property
    def nbytes(self) -> int:
        """Memory that protects the optimizer step."""
        return self._whole.nbytes + (0 if self._units is None else self._units.nbytes)

    def remake(self) -> None:
        """Nothing is compiled."""

    def _ratios(self, ratios: Any) -> Any:
        return None if ratios is None else torch.from_numpy(ratios)
