"""Teaching a small model with a large one.

Covers: softened targets with temperature for every output, a teacher that is live (quantized where memory is short) or
whose outputs are stored in one pass.
Does not cover: building the small model (width.py), training steps (train.py).
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from penstock.compress.data import Array, Batches, Inputs, Outputs, arrays, bare, by_output, first
from penstock.compress.files import open_model
from penstock.compress.framework import Framework, Loss, framework_of
from penstock.compress.quantize import quantized
from penstock.compress.teacher.logits import DONE, Logits, fingerprint
from penstock.compress.train import Fit, Teach, fine_tune, goals_of
from penstock.core.errors import InvalidInput
from penstock.core.events import events
from penstock.guard.recovery.free_memory import free_nbytes

TRAINING_COPIES = 4
"""Weights, gradients and Adam's two moments: what training a student takes for each of its weights, at least."""


@dataclass(frozen=True)
class Teacher:
    """Where a teacher's answers come from.

    `cache`: True stores its outputs in a temporary folder, a path keeps them for later runs, False keeps it live.
    `quantize`: "int8" (or another mode) hears a quantized copy; "auto" does so only for a live teacher that was opened
    here, when what the memory limit leaves is less than training the student takes; None never.
    """

    cache: bool | str | Path = True
    quantize: str | None = "auto"


def distill(
    teacher: object,
    student: object,
    ds: Batches,
    *,
    temperature: float = 2.0,
    alpha: float = 0.5,
    fit: Fit | None = None,
    cache: bool | str | Path | Teacher = True,
) -> list[float]:
    """Train `student` in place on the labels and on what `teacher` says; returns the mean loss of each epoch.

    `alpha` is the teacher's share of the loss. `teacher` is a model, a file, or a function that makes a model: a
    file or function is opened, heard once and let go before the student trains, so the two never share memory.
    `cache` names a folder that keeps the teacher's outputs for later runs; False keeps the teacher live; a `Teacher`
    also says whether it is quantized. Models of several outputs are taught on each of them.

    >>> losses = distill("teacher.keras", student, ds, fit=Fit(epochs=3), cache="logits/")  # doctest: +SKIP
    """
    framework = framework_of(student)
    x, y = first(ds)
    losses = taught(goals_of(framework, student, x, y), temperature, alpha)
    way = cache if isinstance(cache, Teacher) else Teacher(cache)
    with teaching(teacher, ds, way, student_nbytes=_nbytes(framework, student)) as teach:
        _agree(teach(x), framework.predict(student, x))
        return fine_tune(framework, student, ds, fit or Fit(), goals=losses, teach=teach)


def _agree(said: Outputs, made: Outputs) -> None:
    pairs = zip(by_output(said, arrays(made), "teacher's outputs").items(), arrays(made).values(), strict=True)
    for (name, told), own in pairs:
        if told.shape[1:] != own.shape[1:]:
            where = f" for {name!r}" if name else ""
            raise InvalidInput(
                f"The teacher gives {told.shape[1:]} outputs a row and the student {own.shape[1:]}{where}; "
                "they must agree."
            )


def taught(goals: dict[str, Loss], temperature: float, alpha: float) -> dict[str, Loss]:
    """The losses of a student, with its options checked."""
    if not temperature > 0:
        raise InvalidInput(f"temperature must be above 0, not {temperature}.")
    if not 0 < alpha <= 1:
        raise InvalidInput(f"alpha, the teacher's share, must be above 0 and at most 1, not {alpha}.")
    return {name: replace(loss, temperature=temperature, alpha=alpha) for name, loss in goals.items()}


@contextmanager
def teaching(teacher: object, ds: Batches, way: Teacher, *, student_nbytes: int = 0) -> Iterator[Teach]:
    """What the teacher says of a batch, for as long as the block lasts."""
    if way.cache is False:
        yield _speaker(_live(teacher, way, student_nbytes), first(ds))
        return
    with tempfile.TemporaryDirectory(prefix="penstock-logits-") as scratch:
        stored = _stored(teacher, ds, way, Path(scratch) if way.cache is True else Path(str(way.cache)))
        del teacher  # else this block would hold it while the student trains
        try:
            yield stored
        finally:
            stored.close()


def _stored(teacher: object, ds: Batches, way: Teacher, folder: Path) -> Logits:
    model = _opened(teacher)
    if way.quantize not in (None, "auto"):
        model, _ = quantized(model, str(way.quantize))
    mark = fingerprint(framework_of(model).arrays(model).values())
    if (folder / DONE).exists():
        stored = Logits(folder)
        if stored.teacher != mark:
            stored.close()
            raise InvalidInput(f"{folder} holds the outputs of another teacher. Name another folder, or remove it.")
        return stored
    stored = Logits.write(_speaker(model, first(ds)), ds, folder, mark)
    # The teacher is dropped here, before the student's optimizer exists, unless the caller holds it too.
    del model
    gc.collect()
    return stored


def _live(teacher: object, way: Teacher, student_nbytes: int) -> Any:
    """A teacher that stays in memory beside the student."""
    model = _opened(teacher)
    mode = way.quantize
    if mode == "auto":
        left = free_nbytes()
        mode = choose_mode(opened_here=model is not teacher, student_nbytes=student_nbytes, free=left)
        if mode is not None:
            events.emit("shrink.teacher", "distill", mode=mode, free=left, student_nbytes=student_nbytes)
    return model if mode is None else quantized(model, mode)[0]


def choose_mode(*, opened_here: bool, student_nbytes: int, free: int) -> Literal["int8"] | None:
    """int8 where training the student takes more than is left. A model that the caller holds too would free nothing."""
    return "int8" if opened_here and TRAINING_COPIES * student_nbytes > free else None


def _nbytes(framework: Framework, model: Any) -> int:
    return sum(values.nbytes for values in framework.arrays(model).values())


def _opened(teacher: object) -> Any:
    if isinstance(teacher, (str, Path)):
        return open_model(teacher)
    made_by_function = callable(teacher) and not any(hasattr(teacher, name) for name in ("parameters", "weights"))
    return teacher() if made_by_function else teacher  # type: ignore[operator]


def _speaker(model: Any, example: tuple[Inputs, Inputs]) -> Teach:
    framework = framework_of(model)
    goals = goals_of(framework, model, *example)

    def speak(batch: Inputs) -> Outputs:
        return bare(
            {name: _logits(part, goals[name]) for name, part in arrays(framework.predict(model, batch)).items()}
        )

    return speak


def _logits(made: Array, loss: Loss) -> Array:
    made = made.astype(np.float32, copy=False)
    if loss.task == "regress" or loss.output == "logits":
        return made
    safe = np.clip(made, 1e-7, 1 - 1e-7)
    # Logits are only defined up to a constant, so the logarithm of a softmax is as good as what went in.
    return np.asarray(np.log(safe) if safe.shape[-1] > 1 else np.log(safe / (1 - safe)))
