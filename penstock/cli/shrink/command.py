"""`penstock shrink`: make a model smaller and show what that cost.

Covers: the command's options and its output.
Does not cover: the work (penstock.compress), reading what --data names (shrink_data.py).
"""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.arguments.backend import default_backend
from penstock.cli.arguments.paths import check_there
from penstock.cli.quiet_stderr import quiet_stderr
from penstock.core.errors import MissingExtra, NotFound, PenstockError
from penstock.core.sizes import parse_size
from penstock.train.config import BACKENDS, read_config
from penstock.watch.run_folder import CONFIG
from penstock.watch.run_folder import MODEL as RUN_MODEL

if TYPE_CHECKING:
    from penstock.cli.shrink.data import Sides
    from penstock.compress.recipe import Ways
    from penstock.compress.result.report import Shrunk


def _option(text: str, **more: Any) -> Any:
    return typer.Option(help=text, **more)


MODEL = (
    "model.keras, a run folder, a SavedModel folder, program.pt2, script.pt, or net.py:build (a function that makes it)"
)

# Every option says what it is for, with an example.
Model = Annotated[str, typer.Argument(help=MODEL)]
Out = Annotated[Path, _option("File to write: small.keras .tflite .onnx; for torch: small.pt2 .pt .onnx")]
Weights = Annotated[Path | None, _option("Weights for net.py:build, e.g. --weights w.pt")]
Data = Annotated[
    str | None,
    _option("Training data: train.npz (x and y), a folder of x.npy and y.npy, data.py:batches, pictures, a run's data"),
]
HeldOut = Annotated[str | None, _option("Data to judge by, in the same forms, e.g. --held-out test.npz")]
Val = Annotated[float, _option("Share of --data kept back for judging where --held-out is not given, e.g. --val 0.2")]
Batch = Annotated[int, _option("Rows a batch, e.g. --batch 128", min=1)]
To = Annotated[str | None, _option("Search for a file of at most this size, e.g. --to 200MB")]
Peak = Annotated[str | None, _option("Search for an inference peak of at most this size, e.g. --peak 50MB")]
TimeLimit = Annotated[float, _option("Seconds that a search may take, e.g. --time-limit 600")]
Width = Annotated[float, _option("Scale filters, units and heads, e.g. --width 0.5")]
Prune = Annotated[float, _option("Fraction of weights, or channels, to remove, e.g. --prune 0.6")]
Structured = Annotated[bool, _option("Remove whole channels, e.g. --prune 0.5 --structured")]
Ratio = Annotated[str | None, _option("Keep N of every M weights, e.g. --n-m 2:4")]
Quantize = Annotated[
    str | None, _option("float16 int8 int4 float8; torch: int8-dynamic int8-static; e.g. --quantize int8")
]
Aware = Annotated[bool, _option("Train with quantized weights, e.g. --quantize int8 --quantize-aware")]
Distill = Annotated[bool, _option("Let the large model teach the small one, e.g. --width 0.5 --distill")]
Temperature = Annotated[float, _option("How soft the teacher's answers are, e.g. --temperature 4")]
Alpha = Annotated[float, _option("The teacher's share of the loss, e.g. --alpha 0.7")]
TeacherMode = Annotated[str | None, _option("Hear a quantized teacher where memory is short, e.g. --teacher int8")]
Epochs = Annotated[int, _option("Passes over the data, e.g. --epochs 3", min=0)]
LearningRate = Annotated[float, _option("Adam's learning rate, e.g. --learning-rate 3e-4")]
Export = Annotated[str | None, _option("Also write small.tflite or small.onnx beside --out, e.g. --export tflite")]
Report = Annotated[Path | None, _option("Also write the measurements, e.g. --report report.json")]


def shrink(
    model: Model,
    out: Out,
    weights: Weights = None,
    data: Data = None,
    held_out: HeldOut = None,
    val: Val = 0.1,
    batch: Batch = 64,
    to: To = None,
    peak: Peak = None,
    time_limit: TimeLimit = 900.0,
    width: Width = 1.0,
    prune: Prune = 0.0,
    structured: Structured = False,
    n_m: Ratio = None,
    quantize: Quantize = None,
    quantize_aware: Aware = False,
    distill: Distill = False,
    temperature: Temperature = 2.0,
    alpha: Alpha = 0.5,
    teacher: TeacherMode = None,
    epochs: Epochs = 1,
    learning_rate: LearningRate = 1e-3,
    export: Export = None,
    report: Report = None,
) -> None:
    """Shrink a model by width, pruning, quantization and distillation, measured before and after.

    Where a run knows how raw data becomes its model's input, `penstock predict small.keras DATA` works too.

    Exit codes: 0 done · 1 nothing meets the target, or a file cannot be written · 2 wrong usage, model or data.

    Examples:

        penstock shrink model.keras --out small.keras --quantize int8

        penstock shrink model.keras --out small.keras --width 0.5 --distill --data train.npz --held-out test.npz

        penstock shrink model.keras --out small.keras --prune 0.5 --structured --data train.npz --export tflite

        penstock shrink net.py:build --weights w.pt --out small.pt2 --peak 50MB --data train.npz --held-out test.npz

        penstock shrink saved_model/ --out small.tflite --quantize int8 --data train.npz

        penstock shrink runs/photos --out small.keras --to 2MB --data photos/
    """
    ways: Ways = {
        "width": width, "prune": prune, "structured": structured, "n_m": _ratio(n_m), "quantize": quantize,
        "quantize_aware": quantize_aware, "distill": distill, "temperature": temperature, "alpha": alpha,
        "teacher": teacher, "epochs": epochs, "learning_rate": learning_rate,
    }  # fmt: skip
    _check(model, data, held_out, (to, peak))
    options = {
        "weights": weights, "out": out, "export": export, "to": to, "peak": peak, "time_limit_s": time_limit, **ways,
    }  # fmt: skip
    result, sides = _shrunk(model, (data, held_out, batch, val), options)
    _tell(result, sides, out, report)


def _shrunk(
    model: str, given: tuple[str | None, str | None, int, float], options: dict[str, Any]
) -> tuple[Shrunk, Sides]:
    """The work, and the data it was done with; `given` is --data, --held-out, --batch and --val."""
    from penstock.cli.shrink.data import open_sides
    from penstock.compress.shrink import shrink as run_shrink

    data, held_out, batch, val = given
    try:
        model = _ready(model)
        sides = open_sides(model, data, held_out, batch=batch, val=val)
        result = run_shrink(model, data=sides.data, held_out=sides.held_out, training_peak=True, **options)
    except PenstockError as error:
        raise _refused(error) from error
    return result, sides


def _check(model: str, data: str | None, held_out: str | None, sizes: tuple[str | None, ...]) -> None:
    """Refuse what is wrong with the options, before anything is loaded."""
    file = model.rpartition(":")[0] if ".py:" in model else model
    try:
        if not Path(file).exists():
            raise NotFound(f"There is no model at {file}.")
        for given in (data, held_out):
            if given is not None and ".py:" not in given:
                check_there(given)
        for size in sizes:
            if size is not None:
                parse_size(size)
    except PenstockError as error:
        typer.echo(f"penstock shrink: {error}", err=True)
        raise typer.Exit(2) from error


def _refused(error: PenstockError) -> typer.Exit:
    """Say why, and choose the exit code."""
    from penstock.compress.result.frontier import frontier_rows
    from penstock.compress.result.report import markdown
    from penstock.compress.search import TargetMissed

    if isinstance(error, TargetMissed):
        typer.echo(markdown(frontier_rows(error.trials)))
    typer.echo(f"penstock shrink: {error}", err=True)
    return typer.Exit(1 if isinstance(error, TargetMissed) else 2)


def _tell(result: Shrunk, sides: Sides, out: Path, report: Path | None) -> None:
    """What was measured, and what else was written."""
    from penstock.train.recipe import keep_recipe

    typer.echo(str(result) + (f"\n\nHeld out: {sides.kept}." if sides.kept else ""))
    if (kept := keep_recipe(sides.recipe, out)) is not None:
        next_step = f"; next: penstock predict {out} DATA --out FILE" if out.suffix == ".keras" else ""
        typer.echo(f"\nHow raw data becomes its input: {kept}{next_step}")
    if report is not None:
        report.write_text(json.dumps(result.to_json(), indent=2))


def _ready(model: str) -> str:
    """The model's file, that of a run folder if it is one, with its framework loaded."""
    found = Path(model) / RUN_MODEL
    file = str(found) if found.exists() else model
    _choose_backend(Path(file).parent)
    _load_framework(file)
    return file


def _choose_backend(folder: Path) -> None:
    """The backend of the model's run, or one that is installed: Keras by itself takes TensorFlow or nothing."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if "KERAS_BACKEND" in os.environ or "keras" in sys.modules:
        return
    if (folder / CONFIG).exists():
        os.environ["KERAS_BACKEND"] = read_config(folder).backend
    elif not (Path.home() / ".keras" / "keras.json").exists():  # there people say which one they want
        os.environ["KERAS_BACKEND"] = default_backend()


def _load_framework(model: str) -> None:
    """Keras, where it will be needed: TensorFlow greets on stderr whatever its log level is."""
    if Path(model).suffix != ".keras" or not zipfile.is_zipfile(model):
        return
    try:
        with quiet_stderr():
            import keras  # noqa: F401
    except ModuleNotFoundError as error:
        extra = error.name if error.name in BACKENDS else "keras"
        raise MissingExtra(what="Shrinking a Keras model", extra=str(extra)) from error


def _ratio(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    n, _, m = text.partition(":")
    if not (n.isdigit() and m.isdigit()):
        raise typer.BadParameter(f"{text!r} is not of the form 2:4", param_hint="--n-m")
    return int(n), int(m)
