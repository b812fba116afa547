"""Carrying out one call of `shrink`.

Covers: building, training, quantizing, writing and measuring a recipe, or all that a search wants to try.
Does not cover: checking the call (run.py), deciding what to try (search.py).
"""

from __future__ import annotations

import gc
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.compress.child.probe import TIMEOUT_S, ModelFacts, measure
from penstock.compress.child.spill import Spilled
from penstock.compress.data import Batches, Inputs, first
from penstock.compress.export import export_lite, export_onnx
from penstock.compress.files import SavedModel, save_model
from penstock.compress.framework import framework_of
from penstock.compress.quantize import quantized
from penstock.compress.recipe import Recipe, SizeTarget
from penstock.compress.result.frontier import best, plot
from penstock.compress.result.report import Shrunk
from penstock.compress.search import SearchSteps, search
from penstock.compress.teacher.distill import Teacher, taught, teaching
from penstock.compress.thin.masks import Schedule
from penstock.compress.thin.prune import Pruner, prune
from penstock.compress.thin.width import left_alone, remove_channels, width
from penstock.compress.train import Fit, Teach, fine_tune, goals_of

MODES: dict[str, tuple[str | None, ...]] = {
    ".keras": (None, "float16", "int8", "int4"),
    ".tflite": (None, "float16", "int8"),
    ".pt2": (None, "float16", "int8", "int4"),
    ".onnx": (None,),
}
"""What a search may store weights as, most precise first."""


class Shrinking:
    """One model, its data and a scratch folder. `owned`: the model was opened here and may be let go."""

    def __init__(self, model: Any, out: Path, data: Batches | None, folder: Path) -> None:
        self.model, self.out, self.data, self.folder = model, out, data, folder
        self.held_out: Spilled | None = None
        self.training_peak = self.owned = False
        self.notes: list[str] = []

    @property
    def example(self) -> Inputs | None:
        source = self.data if self.data is not None else self.held_out
        return None if source is None else first(source)[0]

    def measure_original(self) -> ModelFacts:
        if isinstance(self.model, SavedModel):
            return measure(self.model.path, self.held_out)
        suffix = ".keras" if framework_of(self.model).name == "keras" else ".pt2"
        # A copy without optimizer state, so that file sizes compare weights with weights.
        plain = framework_of(self.model).copy(self.model)
        path = save_model(plain, self.folder / f"before{suffix}", self.example)
        return measure(path, self.held_out, model=plain, training=self.training_peak)

    def build(self, recipe: Recipe) -> Any:
        """The model with its new widths, untrained."""
        small = self.model
        if recipe.width < 1:
            small = width(small, recipe.width, example=self.example)
        if recipe.structured:
            small = remove_channels(small, recipe.prune, example=self.example)
        if small is self.model:
            return framework_of(small).copy(small)
        self.note(*left_alone(self.model, self.example))
        return small

    def train(self, small: Any, recipe: Recipe, time_limit_s: float | None = None, *, last: bool = False) -> Any:
        """The model after training with all that the recipe asks for. `last`: the large one is not needed again."""
        if not recipe.trains:
            return small
        if self.data is None:
            self.note("No data was given, so the smaller model was not fine-tuned; expect a large loss.")
            return small
        framework, fit = framework_of(small), Fit(recipe.epochs, recipe.learning_rate, time_limit_s)
        way = Teacher(quantize=recipe.teacher)
        lesson = teaching(self.model, self.data, way) if recipe.distill else nullcontext(None)
        with lesson as teach:
            if last and self.owned:
                self.model = None
                gc.collect()
            told: Teach | None = teach
            goals = goals_of(framework, small, *first(self.data))
            if recipe.distill:
                goals = taught(goals, recipe.temperature, recipe.alpha)
            if recipe.n_m or (recipe.prune and not recipe.structured):
                thin = prune(small, self.data, recipe.prune, fit=fit, n_m=recipe.n_m, goals=goals, teach=told)
                self.note(*_zeros(thin, recipe))
                return thin
            fine_tune(framework, small, self.data, fit, goals=goals, teach=told)
        return small

    def write(self, small: Any, recipe: Recipe, out: Path) -> Any:
        """Quantize and write; returns the model as written, where it has one in memory."""
        if out.suffix == ".tflite":
            export_lite(small, out, recipe.quantize, calibration=self.data)
            return small
        made = small
        if recipe.quantize:
            fit = Fit(recipe.epochs, recipe.learning_rate) if recipe.quantize_aware else None
            made, notes = quantized(small, recipe.quantize, calibration=self.data, fit=fit)
            self.note(*notes)
        if out.suffix == ".onnx":
            export_onnx(made, out, self.example)
        else:
            save_model(made, out, self.example)
        return made

    def carry_out(self, recipe: Recipe, export: str | None, before: ModelFacts) -> Shrunk:
        """One recipe, start to end."""
        if isinstance(self.model, SavedModel):
            export_lite(self.model, self.out, recipe.quantize, calibration=self.data)
            return Shrunk(self.model, (self.out,), recipe, before, (measure(self.out, self.held_out),))
        small = self.train(self.build(recipe), recipe, last=True)
        made = self.write(small, recipe, self.out)
        training = self.training_peak and self.out.suffix in (".keras", ".pt2") and not recipe.quantize
        after = [measure(self.out, self.held_out, model=small, training=training)]
        if recipe.quantize and after[0].file_nbytes >= before.file_nbytes:
            self.note(f"{recipe.quantize}: the file grew. So few weights weigh less than what is said about them.")
        files = [self.out]
        if export is not None and self.out.suffix != f".{export}":
            files.append(self.out.with_suffix(f".{export}"))
            self.write(small, recipe, files[1])
            after.append(measure(files[1], self.held_out, model=small))
        return Shrunk(made, tuple(files), recipe, before, tuple(after), tuple(self.notes))

    def search(self, start: Recipe, target: SizeTarget, before: ModelFacts) -> Shrunk:
        """The best combination within the target; the file of the best so far is kept."""
        kept: dict[Recipe, tuple[Path, Any, list[str]]] = {}
        common = self.notes

        def sketch(small: Any, recipe: Recipe, time_left_s: float) -> ModelFacts:
            path = self.folder / f"sketch{self.out.suffix}"
            self.write(small, replace(recipe, quantize_aware=False), path)
            self.notes = list(common)  # what is said of a combination is kept only if it is trained
            held_out = self.held_out if target.peak is not None else None
            return measure(path, held_out, model=small, timeout_s=max(10.0, time_left_s))

        def finish(small: Any, recipe: Recipe, time_left_s: float) -> ModelFacts:
            path = self.folder / f"trial{len(kept)}{self.out.suffix}"
            trained = self.train(small, recipe, time_left_s)
            made = self.write(trained, recipe, path)
            kept[recipe] = (path, made, self.notes)
            self.notes = list(common)
            return measure(path, self.held_out, model=trained, timeout_s=TIMEOUT_S)

        steps = SearchSteps(self.build, _parameters, sketch, finish, weights_only=self.out.suffix == ".pt2")
        trials = search(steps, start, target, MODES[self.out.suffix])
        winner = best(trials)
        if winner is None or winner.facts is None:
            raise AssertionError("search returns only with a winner")
        path, made, notes = kept[winner.recipe]
        after = replace(winner.facts, file=self.out.name)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_bytes(path.read_bytes())
        self.out.with_suffix(".frontier.svg").write_text(plot(trials, target))
        return Shrunk(made, (self.out,), winner.recipe, before, (after,), tuple(notes), tuple(trials))

    def note(self, *notes: str) -> None:
        self.notes += [note for note in dict.fromkeys(notes) if note not in self.notes]


def _zeros(thin: Any, recipe: Recipe) -> list[str]:
    """What pruning left, as counted in the weights."""
    pruner = Pruner(thin, Schedule(recipe.prune), n_m=recipe.n_m)
    sizes, shares = {name: kernel.size for name, kernel in pruner.kernels.items()}, pruner.sparsity()
    zeros = sum(shares[name] * size for name, size in sizes.items())
    notes = [
        f"{zeros / sum(sizes.values()):.0%} of {sum(sizes.values()):,} kernel weights are zero. Zeroed weights make "
        "neither memory nor time fall; structured=True removes channels."
    ]
    if skipped := pruner.skipped():
        n, m = recipe.n_m or (0, 0)
        notes.append(f"{n}:{m} leaves {', '.join(skipped)} dense: {m} does not divide their inputs.")
    return notes


def _parameters(model: Any) -> int:
    return framework_of(model).parameters(model)
