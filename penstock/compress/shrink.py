"""One call for all ways of shrinking.

Covers: checking what is asked for, then carrying out a recipe or a search.
Does not cover: the work (execute.py), any one way (width.py, prune.py, quantize.py, distill.py).
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from penstock.compress.child.spill import Spilled
from penstock.compress.data import Batches, arrays, by_output, first, rows
from penstock.compress.execute import MODES, Shrinking
from penstock.compress.files import SavedModel, open_model
from penstock.compress.framework import framework_of
from penstock.compress.recipe import Recipe, SizeTarget, Ways
from penstock.compress.result.report import Shrunk
from penstock.core.errors import InvalidInput, PenstockError
from penstock.core.sizes import Size, parse_size

KERAS_OUT, TORCH_OUT = (".keras", ".tflite", ".onnx"), (".pt2", ".pt", ".onnx")


@dataclass(frozen=True)
class _Asked:
    """One call, as it was made."""

    recipe: Recipe
    target: SizeTarget
    out: Path
    export: str | None
    has_data: bool
    has_held_out: bool


def shrink(
    model: object,
    *,
    out: str | Path,
    data: Batches | None = None,
    held_out: Batches | None = None,
    weights: str | Path | None = None,
    export: str | None = None,
    to: Size | None = None,
    peak: Size | None = None,
    time_limit_s: float = 900.0,
    training_peak: bool = False,
    **ways: Unpack[Ways],
) -> Shrunk:
    """Shrink a model (or model file), write it to `out`, and measure both on `held_out`.

    Ways: width=0.5, prune=0.6 (structured=True removes channels), n_m=(2, 4), quantize="int8", distill=True; or `to`
    or `peak`, sizes for which the best combination is searched within `time_limit_s`. `data` and `held_out` are
    re-iterable streams of `(x, y)` batches; x and y may be tuples or dicts of arrays. `export` is "tflite" or "onnx", a
    second file beside `out`. `weights` belong to a model given as "module.py:build". A model given as a file is let go
    once it has taught its student.

    >>> small = shrink("model.keras", out="small.keras", data=train, held_out=test, width=0.5)  # doctest: +SKIP
    """
    target = SizeTarget(
        None if to is None else parse_size(to), None if peak is None else parse_size(peak), time_limit_s
    )
    asked = _Asked(Recipe(**ways), target, Path(out), export, data is not None, held_out is not None)
    owned = isinstance(model, (str, Path))
    if isinstance(model, (str, Path)):
        model = open_model(model, weights=weights)
    elif weights is not None:
        raise InvalidInput("weights belong to a model given as 'module.py:build'; this one is already built.")
    _check(model, asked)
    _try(model, data, held_out)
    with tempfile.TemporaryDirectory(prefix="penstock-shrink-") as folder:
        shrinking = Shrinking(model, asked.out, data, Path(folder))
        del model
        shrinking.owned, shrinking.training_peak = owned, training_peak
        if held_out is not None:
            shrinking.held_out = Spilled.write(held_out, shrinking.folder / "held_out", what="held_out")
        before = shrinking.measure_original()
        if target:
            return shrinking.search(asked.recipe, target, before)
        return shrinking.carry_out(asked.recipe, export, before)


def _check(model: Any, asked: _Asked) -> None:
    """Refuse what cannot shrinking, before anything is trained."""
    recipe, out = asked.recipe, asked.out
    if asked.export not in (None, "tflite", "onnx"):
        raise InvalidInput(f"export must be 'tflite' or 'onnx', not {asked.export!r}.")
    if isinstance(model, SavedModel):
        _check_saved_model(asked)
        return
    framework = framework_of(model)
    kinds = KERAS_OUT if framework.name == "keras" else TORCH_OUT
    if out.suffix not in kinds:
        raise InvalidInput(f"A {framework.name} model is written to {', '.join(kinds)}; {out.name!r} is none of them.")
    if framework.name == "torch" and asked.export == "tflite":
        raise InvalidInput("LiteRT files are made from Keras models and SavedModels. Export a torch module to onnx.")
    if framework.name == "torch" and not (asked.has_data or asked.has_held_out):
        raise InvalidInput("A torch module needs data or held_out: its layers are followed with a batch of inputs.")
    if ((recipe.prune and not recipe.structured) or recipe.n_m or recipe.distill) and not asked.has_data:
        raise InvalidInput("Pruning and distilling happen while training, so they need data.")
    if framework.name == "keras" and recipe.quantize and (out.suffix == ".onnx" or asked.export == "onnx"):
        raise InvalidInput(
            "An ONNX file of a Keras model holds float32: the converter knows no quantized Keras layers. "
            "Leave quantize out for .onnx, or write a .tflite file."
        )
    if recipe.quantize_aware and (out.suffix == ".tflite" or asked.export == "tflite"):
        raise InvalidInput(
            "LiteRT files are quantized after training: neither Keras 3 nor its converter can fine-tune under "
            "simulated int8 for them. Leave quantize_aware out, or write a .keras file (int8 with LoRA)."
        )
    if asked.target and not (asked.has_data and asked.has_held_out):
        raise InvalidInput("A search compares held-out results: it needs data to train on and held_out to judge by.")
    if asked.target and out.suffix not in MODES:
        raise InvalidInput(f"A search writes one of {', '.join(MODES)}, not {out.suffix!r}.")


def _try(model: Any, data: Batches | None, held_out: Batches | None) -> None:
    """Two rows of each stream through the model, so that data of another form is refused by name."""
    if isinstance(model, SavedModel):
        return
    for what, batches in (("data", data), ("held_out", held_out)):
        if batches is None:
            continue
        x, y = first(batches, what)
        try:
            made = framework_of(model).predict(model, rows(x, 0, 2))
        except PenstockError:
            raise
        except Exception as error:
            forms = ", ".join(f"{name} {p.dtype}{list(p.shape)}".strip() for name, p in arrays(x).items())
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            raise InvalidInput(
                f"The model cannot take a batch of {what}, whose inputs are {forms}: {said}{_fixed_rows(model)}"
            ) from error
        by_output(y, arrays(made))


def _fixed_rows(model: Any) -> str:
    """What to do about the usual reason why a .pt2 program refuses a batch."""
    if framework_of(model).name != "torch":
        return ""
    from penstock.compress.torch.trace import is_exported

    remedy = " If it was exported for one number of rows, export it again with a torch.export.Dim for the first axis."
    return remedy if is_exported(model) else ""


def _check_saved_model(asked: _Asked) -> None:
    wrong = asked.recipe.trains or asked.target or asked.recipe.quantize_aware
    if wrong or asked.out.suffix != ".tflite" or asked.export == "onnx":
        raise InvalidInput(
            "A SavedModel holds a program, not layers: it can only be quantized into a .tflite file. "
            "Save the model as .keras to resize, prune or distill it, or to write .onnx."
        )
