"""`penstock predict`: predictions for raw data, with the model of a run.

Covers: the command's options and its progress bar.
Does not cover: predicting (train/keras/predict.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.arguments.backend import default_backend
from penstock.cli.arguments.paths import check_there
from penstock.cli.quiet_stderr import quiet_stderr
from penstock.core.errors import InvalidInput, MissingExtra, NotFound
from penstock.core.sizes import option_size
from penstock.memory.limits import limit
from penstock.train.config import BACKENDS, read_config
from penstock.watch.run_folder import CONFIG, MODEL

ENDINGS = (".parquet", ".csv", ".jsonl", ".npy")
"""As penstock.guard.write_predictions has them; a test compares them."""


def predict(
    model: Annotated[Path, typer.Argument(help="Run folder, its model.keras, or small.keras of penstock shrink")],
    data: Annotated[str, typer.Argument(help="Raw data of any format that penstock train takes; the target may lack")],
    out: Annotated[Path, typer.Option(help="File to write: .parquet, .csv or .jsonl; .npy for numbers")] = Path(
        "predictions.parquet"
    ),
    batch: Annotated[int, typer.Option(help="Rows at a time")] = 256,
    memory: Annotated[str | None, typer.Option(help="Memory limit, e.g. 2GB")] = None,
    backend: Annotated[str | None, typer.Option(help="tensorflow, torch or jax; that of the run if left out")] = None,
    query: Annotated[str | None, typer.Option(help="For databases: a table or a select")] = None,
) -> None:
    """Predict every row of the data, in its order, streamed from disk to disk.

    Scaling, categories and words are those that were learned in training. Classes are written with their probability
    and all probabilities; pictures with their path.

    Exit codes: 0 done · 1 failed · 2 wrong usage · 130 interrupted (no file is left behind).

    Examples:

        penstock predict runs/prices new.csv --out prices.parquet

        penstock predict runs/prices new.csv --out prices.csv

        penstock predict runs/photos/model.keras incoming/ --memory 1GB
    """
    file = model / MODEL if model.is_dir() else model
    if not file.exists():
        finished = " It is not trained to the end: penstock train --resume --out" if (model / CONFIG).exists() else ""
        raise NotFound(f"There is no model at {file}.{finished and f'{finished} {model}'}")
    os.environ["KERAS_BACKEND"] = _backend(file.parent, backend)
    if batch < 1:
        raise InvalidInput(f"--batch must be at least 1, not {batch}.")
    if out.suffix not in ENDINGS:
        raise InvalidInput(
            f"--out must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}, not {out.suffix or out.name}."
        )
    limit_nbytes = None if memory is None else option_size("--memory", memory)
    check_there(data)
    from penstock.read.recognise.formats import open_any
    from penstock.train.recipe import recipe_of_model

    open_any(data, query=query)  # what is not there, or not understood, is reported before a framework is loaded
    out.parent.mkdir(parents=True, exist_ok=True)
    recipe_of_model(file)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if limit_nbytes is not None:
        limit(limit_nbytes)
    rows = _written(file, data, out, query, batch)
    typer.echo(f"{rows:,} predictions in {out}")


def _written(file: Path, data: str, out: Path, query: str | None, batch: int) -> int:
    """Predict behind a progress bar; returns the rows."""
    try:
        with quiet_stderr():
            from penstock.train.keras.predict import predict as write  # the framework comes in here
    except ModuleNotFoundError as error:
        raise MissingExtra(what="penstock predict", extra=os.environ["KERAS_BACKEND"]) from error
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,} rows"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("predicting", total=None)
        return write(file, data, out, query=query, batch=batch, progress=lambda n: bar.update(task, completed=n))


def _backend(folder: Path, asked: str | None) -> str:
    if asked is not None and asked not in BACKENDS:
        raise InvalidInput(f"--backend must be one of {', '.join(BACKENDS)}, not {asked!r}.")
    if asked is None and (folder / CONFIG).exists():
        return read_config(folder).backend
    return asked or default_backend()
