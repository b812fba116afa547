from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from penstock.compress.child.probe import ModelFacts
from penstock.compress.recipe import Recipe, SizeTarget
from penstock.compress.result.frontier import Trial, best, frontier_rows, plot, unbeaten
from penstock.compress.result.report import Shrunk
from penstock.compress.result.score import Score
from penstock.compress.search import WEIGHT_NBYTES, SearchSteps, TargetMissed, search
from penstock.core.errors import InvalidInput

MODES = (None, "float16", "int8")


class Arithmetic:
    """A model of models: parameters fall with the square of the width, accuracy with its logarithm."""

    def __init__(self, cannot: tuple[str, ...] = ()) -> None:
        self.trained: list[Recipe] = []
        self.cannot = cannot

    def shop(self) -> SearchSteps:
        return SearchSteps(lambda r: r.width, lambda w: int(1_000_000 * w * w), self.sketch, self.finish)

    def sketch(self, width: float, recipe: Recipe, left_s: float = 0) -> ModelFacts:
        if recipe.quantize in self.cannot:
            raise InvalidInput(f"no {recipe.quantize} here")
        nbytes = int(1_000_000 * width * width * WEIGHT_NBYTES[recipe.quantize]) + 1000
        return ModelFacts("m", nbytes, inference_nbytes=int(width * 1e6))

    def finish(self, width: float, recipe: Recipe, left_s: float) -> ModelFacts:
        self.trained.append(recipe)
        loss = {None: 0.0, "float16": 0.001, "int8": 0.005}[recipe.quantize]
        facts = self.sketch(width, recipe)
        return ModelFacts(
            "m",
            facts.file_nbytes,
            inference_nbytes=facts.inference_nbytes,
            score=Score("accuracy", 0.8 + width / 10 - loss, 9),
        )


def test_the_widest_that_fits_wins_with_the_most_precise_numbers() -> None:
    work = Arithmetic()
    winner = best(search(work.shop(), Recipe(), SizeTarget(to=1_200_000), MODES))
    assert winner is not None
    assert (winner.recipe.width, winner.recipe.quantize) == (1.0, "int8")
    assert all(recipe.width >= 0.5 for recipe in work.trained)  # it stops when narrower ones only lose


def test_what_cannot_fit_is_never_trained() -> None:
    work = Arithmetic()
    trials = search(work.shop(), Recipe(), SizeTarget(to=300_000), MODES)
    assert {recipe.width for recipe in work.trained}.isdisjoint({1.0, 0.75})
    assert any(trial.facts is None and "weights alone" in trial.why for trial in trials)


def test_a_peak_is_met_by_width_alone() -> None:
    winner = best(search(Arithmetic().shop(), Recipe(), SizeTarget(peak=600_000), MODES))
    assert winner is not None
    assert winner.recipe.width == 0.5


def test_an_impossible_target_names_the_closest_that_was_tried() -> None:
    with pytest.raises(TargetMissed, match=r"its weights alone are 15\.6 KB"):
        search(Arithmetic().shop(), Recipe(), SizeTarget(to=100), MODES)
    with pytest.raises(TargetMissed, match="closest is 'width 0.125': file 63.5 KB, inference peak 125 KB") as caught:
        search(Arithmetic().shop(), Recipe(), SizeTarget(peak=100), MODES)
    assert len(caught.value.trials) == 18
    assert caught.value.closest is not None
    assert caught.value.closest.recipe.width == 0.125


def test_a_mode_that_a_framework_lacks_is_a_trial_that_failed_not_the_end() -> None:
    work = Arithmetic(cannot=("float16",))
    trials = search(work.shop(), Recipe(), SizeTarget(to=1_200_000), MODES)
    assert {trial.why for trial in trials if trial.recipe.quantize == "float16" and trial.why} >= {"no float16 here"}
    winner = best(trials)
    assert winner is not None
    assert (winner.recipe.width, winner.recipe.quantize) == (1.0, "int8")


def test_a_model_that_cannot_be_resized_is_still_quantized() -> None:
    def build(recipe: Recipe) -> float:
        if recipe.width < 1:
            raise InvalidInput("holds operations, not layers")
        return recipe.width

    work = Arithmetic()
    start = Recipe(quantize="int8", quantize_aware=True)
    trials = search(replace(work.shop(), build=build), start, SizeTarget(to=2_100_000), MODES)
    assert [(t.recipe.quantize, t.recipe.quantize_aware) for t in trials if t.meets] == [("float16", True)]
    assert sum("not layers" in trial.why for trial in trials) == 5


def test_storage_that_cannot_lower_the_peak_enough_is_not_measured() -> None:
    work = Arithmetic()
    shop = replace(work.shop(), weights_only=True)
    wide = replace(shop, parameters=lambda width: 1000)
    passed = [t for t in search(wide, Recipe(), SizeTarget(peak=300_000), MODES) if "without its weights" in t.why]
    assert {t.recipe.width for t in passed} == {1.0, 0.75, 0.5, 0.375}


def test_no_time_means_no_trial() -> None:
    with pytest.raises(TargetMissed, match="no time"):
        search(Arithmetic().shop(), Recipe(), SizeTarget(to=10**9, time_limit_s=-1), MODES)


def trial(nbytes: int, value: float) -> Trial:
    return Trial(Recipe(), ModelFacts("m", nbytes, score=Score("accuracy", value, 1)), True)


def test_unbeaten_trials_are_the_frontier() -> None:
    trials = [trial(100, 0.9), trial(50, 0.8), trial(60, 0.7), trial(100, 0.85)]
    assert unbeaten(trials) == [trials[1], trials[0]]
    assert [row[0] for row in frontier_rows(trials)[1:]].count("*") == 2


def test_mse_is_better_when_lower() -> None:
    worse = Trial(Recipe(), ModelFacts("m", 10, score=Score("mse", 2.0, 1)), True)
    better = Trial(Recipe(), ModelFacts("m", 10, score=Score("mse", 1.0, 1)), True)
    assert best([worse, better]) is better


def test_the_plot_is_valid_and_shows_every_trial() -> None:
    picture = ElementTree.fromstring(plot([trial(100, 0.9), trial(50, 0.8)], SizeTarget(to=70)))
    assert len([e for e in picture if e.tag.endswith("circle")]) == 2
    assert "target 70 B" in ElementTree.tostring(picture, encoding="unicode")
    assert plot([Trial(Recipe(), None, False)], SizeTarget(to=70)) == ""
    light = Trial(Recipe(), ModelFacts("m", 10, inference_nbytes=90, score=Score("accuracy", 0.9, 1)), True)
    assert "peak memory of inference (0 to 94 B)" in plot([light], SizeTarget(peak=80))


@pytest.mark.parametrize(
    "wrong",
    [
        {"width": 0.0},
        {"width": 1.5},
        {"prune": 1.0},
        {"structured": True},
        {"quantize_aware": True},
        {"teacher": "int8"},
    ],
)
def test_impossible_recipes_are_refused(wrong: dict) -> None:
    with pytest.raises(InvalidInput):
        Recipe(**wrong)


def test_a_report_never_claims_what_was_not_measured() -> None:
    before = ModelFacts("a.keras", 4000, parameters=1000, inference_nbytes=2_000_000, score=Score("accuracy", 0.9, 10))
    text = str(Shrunk(None, (), Recipe(quantize="int8"), before, (ModelFacts("b.tflite", 1000),), notes=("said so",)))
    assert "1 KB (4.00x less)" in text
    assert text.count("not measured") >= 4
    assert "- said so" in text
