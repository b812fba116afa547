"""Magnitude pruning while training.

Covers: a pruner that draws masks along a schedule, keeps them through saving and resuming, and ends.
Does not cover: drawing one mask (masks.py), removing channels so that memory falls (width.py).

Zeros make a file compress better; they make neither memory nor time fall. For that, remove channels.
"""

from __future__ import annotations

import json
import math
import weakref
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from penstock.compress.data import Batches, pairs
from penstock.compress.framework import PrunableWeight, framework_of
from penstock.compress.leases import held
from penstock.compress.thin.channels import Mask
from penstock.compress.thin.masks import Schedule, magnitude_masks, n_m_mask
from penstock.compress.train import Fit, fine_tune
from penstock.core.durable import replace_durably
from penstock.core.errors import BadData, InvalidInput, NotFound
from penstock.core.events import events

ModelT = TypeVar("ModelT")


class Pruner:
    """Holds the masks of one model. Call `step()` after every optimizer step, `strip()` at the end.

    Pass `n_m=(2, 4)` for N:M sparsity; masks are then drawn once, at the schedule's end step. Masks take a byte a
    weight in memory, on a lease that `strip` gives back, and a bit a weight in a file.

    Example: pruner = Pruner(model, Schedule(0.6, end=2000)); model.fit(..., callbacks=[pruner.callback("masks.npz")])
    """

    def __init__(
        self,
        model: object,
        schedule: Schedule,
        *,
        scope: Literal["layer", "global"] = "layer",
        n_m: tuple[int, int] | None = None,
    ) -> None:
        self.kernels: dict[str, PrunableWeight] = {kernel.name: kernel for kernel in framework_of(model).kernels(model)}
        if not self.kernels:
            raise InvalidInput("The model has no dense or convolution kernel that could be pruned.")
        self.schedule, self.scope, self.n_m = schedule, scope, n_m
        self.steps = 0
        self.masks: dict[str, Mask] = {}
        self._give_back: weakref.finalize[[], Pruner] | None = None

    def step(self) -> None:
        """Draw masks where the schedule asks for it, and put pruned weights back to zero."""
        if self.schedule.due(self.steps):
            self._draw()
        self.apply()
        self.steps += 1

    def apply(self) -> None:
        """Put pruned weights back to zero."""
        for name, mask in self.masks.items():
            kernel = self.kernels[name]
            kernel.write(kernel.read() * mask)

    def strip(self) -> dict[str, float]:
        """End pruning: weights are zero for good, masks are forgotten. Returns the sparsity of each kernel."""
        if self.steps <= self.schedule.end:
            self._draw(self.schedule.final)
        self.apply()
        self.masks = {}
        if self._give_back is not None:
            self._give_back()
        return self.sparsity()

    def callback(self, save_to: str | Path | None = None) -> Any:
        """A Keras callback that takes `step()` after every batch and, with `save_to`, saves masks after every epoch."""
        from penstock.compress.keras.callback import pruning_callback

        return pruning_callback(self, save_to)

    def sparsity(self) -> dict[str, float]:
        """The measured share of zeros in each kernel."""
        return {name: float(np.mean(kernel.read() == 0)) for name, kernel in self.kernels.items()}

    def skipped(self) -> list[str]:
        """Kernels whose inputs M does not divide, which N:M therefore leaves dense."""
        if self.n_m is None:
            return []
        n, m = self.n_m
        return [name for name, k in self.kernels.items() if n_m_mask(k.read(), n, m, k.axis) is None]

    def save(self, path: str | Path) -> None:
        """Write step and masks (one bit a weight) beside a checkpoint."""
        about = {
            "steps": self.steps, "scope": self.scope, "n_m": self.n_m, "names": list(self.masks),
            "kernels": [(kernel.name, kernel.shape) for kernel in self.kernels.values()],
            "schedule": vars(self.schedule),
        }  # fmt: skip
        packed = {f"mask{i}": np.packbits(mask) for i, mask in enumerate(self.masks.values())}
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = target.with_name(target.name + ".new")
        with open(scratch, "wb") as file:
            np.savez(file, about=np.array(json.dumps(about)), **packed)  # type: ignore[arg-type]
        replace_durably(scratch, target)  # a run that dies here leaves the masks of the last save

    @classmethod
    def resume(cls, model: object, path: str | Path) -> Pruner:
        """The pruner that `save` wrote, on a model with the same kernels; its masks are applied at once."""
        if not Path(path).exists():
            raise NotFound(f"There are no saved masks at {path}.")
        try:
            with np.load(path, allow_pickle=False) as stored:
                about = json.loads(str(stored["about"]))
                shapes = {name: tuple(shape) for name, shape in about["kernels"]}
                masks = {
                    name: np.unpackbits(stored[f"mask{i}"], count=math.prod(shapes[name])).reshape(shapes[name]) == 1
                    for i, name in enumerate(about["names"])
                }
        except (ValueError, KeyError, OSError) as error:
            raise BadData(str(path), f"not a file of masks: {error}") from error
        n_m = tuple(about["n_m"]) if about["n_m"] else None
        pruner = cls(model, Schedule(**about["schedule"]), scope=about["scope"], n_m=n_m)
        names = pruner._same(shapes, path)
        pruner._lease()
        pruner.masks, pruner.steps = {names[name]: mask for name, mask in masks.items()}, about["steps"]
        pruner.apply()
        return pruner

    def _same(self, shapes: dict[str, tuple[int, ...]], path: str | Path) -> dict[str, str]:
        """Names in a file of masks -> names of this model's kernels, by name, else by order.

        Keras numbers its layers anew in every process and drops the model's name on loading, so names may differ.
        """
        own = {name: kernel.shape for name, kernel in self.kernels.items()}
        if own == shapes:
            return {name: name for name in own}
        for (name, shape), mine in zip(shapes.items(), own.values(), strict=False):
            if shape != mine:
                raise InvalidInput(f"{path} holds masks for {name!r} {shape}, where this model has {mine}.")
        if len(own) != len(shapes):
            raise InvalidInput(f"{path} holds masks for {len(shapes)} kernels; this model has {len(own)}.")
        return dict(zip(shapes, own, strict=True))

    def _lease(self) -> None:
        """Bytes for one mask of every kernel, before the first is drawn."""
        if self._give_back is None or not self._give_back.alive:
            lease = held(sum(kernel.size for kernel in self.kernels.values()), "pruning masks")
            self._give_back = weakref.finalize(self, lease.close)

    def _draw(self, sparsity: float | None = None) -> None:
        if self.n_m is not None and sparsity is None and self.steps < self.schedule.end:
            return
        self._lease()
        wanted = self.schedule.sparsity(self.steps) if sparsity is None else sparsity
        sizes = [kernel.size for kernel in self.kernels.values()]
        # The copy that is read, its magnitudes and their order: of one kernel at a time, or of all of them together.
        together = self.n_m is None and self.scope == "global"
        with held((sum(sizes) if together else max(sizes)) * 16, "drawing masks"):
            if together:
                self.masks = magnitude_masks({n: k.read() for n, k in self.kernels.items()}, wanted, scope="global")
            else:
                self.masks = {n: mask for n, k in self.kernels.items() if (mask := self._one(k, wanted)) is not None}
        events.emit("shrink.prune", "pruner", step=self.steps, kernels=len(self.masks))

    def _one(self, kernel: PrunableWeight, sparsity: float) -> Mask | None:
        if self.n_m is not None:
            return n_m_mask(kernel.read(), *self.n_m, kernel.axis)
        return magnitude_masks({"": kernel.read()}, sparsity, scope=self.scope)[""]


def prune(
    model: ModelT,
    data: Batches,
    sparsity: float = 0.5,
    *,
    fit: Fit | None = None,
    scope: Literal["layer", "global"] = "layer",
    n_m: tuple[int, int] | None = None,
    **tuning: Any,
) -> ModelT:
    """A copy of the model, thinned while it trains on `data`: sparsity grows over the first half of the steps."""
    framework, fit = framework_of(model), fit or Fit()
    small = framework.copy(model)
    batches = sum(1 for _ in pairs(data))
    half = batches * fit.epochs // 2
    schedule = Schedule(0.0 if n_m else sparsity, 0, 0 if n_m else half, max(1, half // 20))
    pruner = Pruner(small, schedule, scope=scope, n_m=n_m)
    fine_tune(framework, small, data, fit, after_step=pruner.step, **tuning)
    pruner.strip()
    return small  # type: ignore[no-any-return]
