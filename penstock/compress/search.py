"""The cheapest combination that meets a size, with the smallest loss.

Covers: which combinations are worth trying, in which order, and when to stop.
Does not cover: building, training and measuring one (execute.py), showing the trials (frontier.py).

Wider models lose less than narrower ones, and precise numbers less than coarse ones; so for each width, widest
first, the most precise storage that meets the target is trained. A file is never smaller than its weights, so
combinations whose weights alone exceed the target are passed over without being built.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.compress.child.probe import ModelFacts
from penstock.compress.child.process import ChildFailed
from penstock.compress.recipe import Recipe, SizeTarget
from penstock.compress.result.frontier import Trial, best
from penstock.core.errors import InvalidInput, PenstockError
from penstock.core.sizes import size

WIDTHS = (1.0, 0.75, 0.5, 0.375, 0.25, 0.125)
WEIGHT_NBYTES = {None: 4.0, "float16": 2.0, "int8": 1.0, "int4": 0.5}
PATIENCE = 2
"""Narrower widths in a row that did worse than the best so far, after which the search is over."""


@dataclass(frozen=True)
class SearchSteps:
    """What a search needs to have done: each function is given by execute.py, so that deciding stays free of
    frameworks.

    `sketch` writes and measures an untrained model, `finish` trains it first; both are given the seconds that are left.
    `weights_only`: quantized files of this kind compute in float32, so their peak falls by their weights at most.
    """

    build: Callable[[Recipe], Any]
    parameters: Callable[[Any], int]
    sketch: Callable[[Any, Recipe, float], ModelFacts]
    finish: Callable[[Any, Recipe, float], ModelFacts]
    weights_only: bool = False


class TargetMissed(PenstockError):
    """No combination met the target. `trials` holds all that were tried, `closest` the one that came nearest."""

    def __init__(self, trials: Sequence[Trial], target: SizeTarget) -> None:
        self.trials, self.target = tuple(trials), target
        self.closest = closest(trials, target)
        super().__init__(_missed(trials, target, self.closest))


def search(steps: SearchSteps, start: Recipe, target: SizeTarget, modes: Sequence[str | None]) -> list[Trial]:
    """Trials in the order in which they were made. Raises TargetMissed when none meets the target in time."""
    end = time.monotonic() + target.time_limit_s
    trials: list[Trial] = []
    worse = 0
    for factor in WIDTHS:
        if time.monotonic() > end or worse >= PATIENCE:
            break
        recipe = replace(start, width=factor * start.width)
        before = best(trials)
        made = _at_width(steps, recipe, target, modes, end, trials)
        if before is not None and made:
            worse = worse + 1 if best(trials) is before else 0
    if best(trials) is None:
        raise TargetMissed(trials, target)
    return trials


def _at_width(
    steps: SearchSteps, recipe: Recipe, target: SizeTarget, modes: Sequence[str | None], end: float, trials: list[Trial]
) -> bool:
    try:
        model = steps.build(recipe)
    except InvalidInput as error:  # a program without layers, say, which can still be quantized at full width
        trials.append(Trial(recipe, None, False, str(error)))
        return False
    count, floor = steps.parameters(model), 0.0
    for mode in modes:
        choice = replace(recipe, quantize=mode, quantize_aware=recipe.quantize_aware and mode is not None)
        hopeless = _hopeless(target, count * WEIGHT_NBYTES[mode], floor)
        if hopeless:
            trials.append(Trial(choice, None, False, hopeless))
            continue
        if time.monotonic() > end:
            return False
        begun = time.monotonic()
        try:
            sketch = steps.sketch(model, choice, end - begun)
            if not meets(sketch, target):
                trials.append(Trial(choice, replace(sketch, score=None), False, "too large"))
                if steps.weights_only and mode is None and sketch.inference_nbytes is not None:
                    floor = sketch.inference_nbytes - count * WEIGHT_NBYTES[None]
                continue
            # Writing and measuring the trained model will take about as long as it did for the sketch.
            took = time.monotonic() - begun
            facts = steps.finish(model, choice, max(1.0, end - time.monotonic() - took))
        except (InvalidInput, ChildFailed) as error:  # this framework cannot, or not in the time that was left
            trials.append(Trial(choice, None, False, str(error)))
            continue
        trials.append(Trial(choice, facts, meets(facts, target)))
        return True
    return False


def _hopeless(target: SizeTarget, weights: float, floor: float) -> str:
    """Why a combination need not be built; empty when it may fit. `floor` is the peak without any weights."""
    if target.to is not None and weights > target.to:
        return f"its weights alone are {size(int(weights))}"
    if target.peak is not None and floor > target.peak:
        return f"without its weights the peak is still {size(int(floor))}"
    return ""


def meets(facts: ModelFacts, target: SizeTarget) -> bool:
    """Whether measured sizes are within the target."""
    small = target.to is None or facts.file_nbytes <= target.to
    light = target.peak is None or (facts.inference_nbytes is not None and facts.inference_nbytes <= target.peak)
    return small and light


def closest(trials: Sequence[Trial], target: SizeTarget) -> Trial | None:
    """The trial that exceeds the target by the smallest factor."""

    def excess(facts: ModelFacts) -> float:
        over = [facts.file_nbytes / target.to] if target.to else []
        return max(over + ([(facts.inference_nbytes or 0) / target.peak] if target.peak else []), default=0.0)

    return min(
        (t for t in trials if t.facts is not None), key=lambda t: excess(t.facts) if t.facts else 0, default=None
    )


def _missed(trials: Sequence[Trial], target: SizeTarget, nearest: Trial | None) -> str:
    goals = [f"a file of {size(target.to)}"] if target.to is not None else []
    wanted = " and ".join(goals + ([f"an inference peak of {size(target.peak)}"] if target.peak is not None else []))
    if nearest is None or nearest.facts is None:
        why = next((trial.why for trial in reversed(trials) if trial.why), "there was no time to try one")
        return f"No combination gets down to {wanted}. Of the last one: {why}. Raise the target."
    facts = nearest.facts
    peak = f", inference peak {size(facts.inference_nbytes)}" if facts.inference_nbytes is not None else ""
    return (
        f"No combination got down to {wanted} within {target.time_limit_s:.0f} s; {len(trials)} were looked at. The "
        f"closest is '{nearest.recipe}': file {size(facts.file_nbytes)}{peak}. Raise the target or the time limit."
    )
