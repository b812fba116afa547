"""`penstock train`: from data on disk and a memory limit to a trained model.

Covers: the command's options, what it prints first and last, exit codes.
Does not cover: the run itself (penstock.train).
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import importlib.util
import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.arguments.backend import default_backend
from penstock.cli.arguments.paths import check_there
from penstock.core.errors import InvalidInput
from penstock.train.config import (
    Config,
    check,
    new_folder,
    parse_image_size,
    read_config,
    refuse_foreign_code,
    without_password,
    write_config,
)
from penstock.watch.run_folder import CHECKPOINTS, CONFIG, EVENTS, LOG, METRICS, MODEL, PREPARE, read_events

if TYPE_CHECKING:
    from penstock.train.show import Display

Data = Annotated[
    str | None, typer.Argument(help="Folder of pictures, CSV, Parquet, TFRecord, HDF5, JSONL, tar, postgresql://")
]
Target = Annotated[str | None, typer.Option(help="Column to learn; found by itself if called label or the like")]
ImageSize = Annotated[str | None, typer.Option(help="Resize pictures to this side, or height x width: 128, 96x128")]
Callbacks = Annotated[
    str | None, typer.Option(help="Keras callbacks of your own, e.g. for W&B or MLflow: track.py:callbacks")
]
Model = Annotated[str, typer.Option(help="cnn, mlp, text, module.py:build or file.keras; by the data if left out")]
Memory = Annotated[str | None, typer.Option(help="Memory limit, e.g. 2GB; the container's or host's if left out")]
OnError = Annotated[str, typer.Option(help="skip leaves damaged files and rows out, and names them; raise stops")]
MaxErrors = Annotated[float | None, typer.Option(help="Skip at most so many; below 1 a share of the rows")]


def train(
    data: Data = None,
    target: Target = None,
    model: Model = "auto",
    memory: Memory = None,
    device_memory: Annotated[str | None, typer.Option(help="Limit on each accelerator, e.g. 8GB")] = None,
    batch: Annotated[int, typer.Option(help="Rows for one step of the optimizer")] = 256,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data (3 if left out)")] = None,
    backend: Annotated[str | None, typer.Option(help="tensorflow, torch or jax; what is installed if left out")] = None,
    precision: Annotated[str, typer.Option(help="auto (bfloat16 only if nothing else fits), float32, mixed")] = "auto",
    val: Annotated[float, typer.Option(help="Share of rows kept for validation")] = 0.1,
    seed: Annotated[int, typer.Option(help="Fixes weights, shuffling and the validation rows")] = 0,
    out: Annotated[Path | None, typer.Option(help="Run folder; runs/NAME-TIME if left out")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, at the exact batch")] = False,
    trust: Annotated[bool, typer.Option("--trust", help="With --resume: run the code that the folder names")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Serve the live page on 127.0.0.1 while it runs")] = False,
    callbacks: Callbacks = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print events as JSON lines on stdout")] = False,
    query: Annotated[str | None, typer.Option(help="For databases: a table or a select")] = None,
    task: Annotated[str, typer.Option(help="auto, classes or number: what the target is")] = "auto",
    image_size: ImageSize = None,
    learning_rate: Annotated[float, typer.Option(help="Of the Adam optimizer")] = 1e-3,
    checkpoint_minutes: Annotated[float, typer.Option(help="Save the run so often")] = 1.0,
    forecast: Annotated[bool, typer.Option(help="Try small steps first, to tell whether a batch will fit")] = True,
    workers: Annotated[int | None, typer.Option(help="Processes that train together, each on its part")] = None,
    engine: Annotated[str, typer.Option(help="What starts the processes: torchrun or ray")] = "torchrun",
    cluster: Annotated[str | None, typer.Option(help="Address of a Ray cluster, with --engine ray")] = None,
    on_error: OnError = "raise",
    max_errors: MaxErrors = None,
    deterministic: Annotated[bool, typer.Option(help="Same seed, same weights; some operations are slower")] = True,
) -> None:
    """Train a model on data of any size, within a memory limit.

    The data is recognised by looking at it, prepared in one streaming pass, and trained on in a supervised process: if
    the kernel or the framework kills it for memory, the run goes on from its last checkpoint, in smaller micro-batches.

    Exit codes: 0 done · 1 failed · 2 wrong usage · 3 does not fit in memory · 130 interrupted (Ctrl-C saves first).

    Examples:

        penstock train photos/ --memory 2GB

        penstock train 'shards/*.csv' --target price --epochs 10 --out runs/prices

        penstock train photos/ --model net.py:build --batch 512 --precision mixed

        penstock train photos/ --backend torch --workers 4

        penstock train --resume --out runs/prices
    """
    given = dict(locals())
    try:
        asked = _asked(given)
        anew = {"epochs": epochs, "memory": memory, "workers": workers}
        folder, config = _resumed(asked.data, out, anew, trust=trust) if resume else _fresh(asked, out)
    except InvalidInput as error:
        typer.echo(f"penstock train: {error}", err=True)
        raise typer.Exit(2) from error
    if not resume:
        _claim(folder, config)
    raise typer.Exit(start(folder, config, _display(as_json), watch=watch, again=resume))


def _display(as_json: bool) -> Display:
    from penstock.train.show import make_display

    return make_display(as_json=as_json)


def _asked(options: dict[str, Any]) -> Config:
    """The options of the command that belong to the run, with what is left out filled in."""
    known = {field.name for field in dataclasses.fields(Config)}
    values = {name: value for name, value in options.items() if name in known}
    values["data"] = values["data"] or ""
    if values["image_size"] is not None:
        values["image_size"] = parse_image_size(values["image_size"])
    values["epochs"] = 3 if values["epochs"] is None else values["epochs"]
    values["workers"] = 1 if values["workers"] is None else values["workers"]
    values["backend"] = values["backend"] or default_backend()
    return Config(**values)


def start(folder: Path, config: Config, display: Display, *, watch: bool = False, again: bool = False) -> int:
    """Run, then say how it ended and what can be done next."""
    from penstock.train.show import summary
    from penstock.train.supervisor import DONE, INTERRUPTED, run

    what = without_password(config.data)
    display.say(f"{'resuming' if again else 'training on'} {what} -> {folder}")
    with _live_page(folder, watch, display):
        code = run(folder, config, display)
    state = display.state
    if code == DONE:
        display.say(summary(state, _metrics(folder)))
        display.say(f"model: {folder / MODEL}   next: penstock predict {shlex.quote(str(folder))} DATA --out FILE")
    elif code == INTERRUPTED:
        saved = f"saved at step {state.saved_step}" if state.saved_step is not None else "nothing saved yet"
        display.say(f"interrupted ({saved}). Go on with: penstock train --resume --out {shlex.quote(str(folder))}")
    else:
        typer.echo(f"penstock train: {state.error or 'the run failed'} (log: {folder / LOG})", err=True)
    return code


def _fresh(asked: Config, out: Path | None) -> tuple[Path, Config]:
    if not asked.data:
        raise InvalidInput("Give the data to train on, or --resume --out RUN. See penstock train --help.")
    code = None if asked.callbacks is None else _absolute_model(asked.callbacks)
    config = dataclasses.replace(asked, data=_absolute(asked.data), model=_absolute_model(asked.model), callbacks=code)
    config = check(config)
    check_there(config.data)
    if importlib.util.find_spec("keras") is None or importlib.util.find_spec(config.backend) is None:
        raise InvalidInput(
            f"Keras with {config.backend} is not installed: pip install keras 'penstock[{config.backend}]'"
        )
    folder = out or new_folder(asked.data)
    _refuse_used(folder)
    return folder, config


def _refuse_used(folder: Path) -> None:
    if _failed_early(folder):
        return
    if (folder / CONFIG).exists() or (folder / EVENTS).exists():
        raise InvalidInput(f"{folder} holds a run already. Go on with --resume --out {folder}, or name another --out.")


def _failed_early(folder: Path) -> bool:
    """Whether all that a folder holds is a run that failed before it had learned anything."""
    if not (folder / EVENTS).exists() or any((folder / name).exists() for name in (PREPARE, CHECKPOINTS, MODEL)):
        return False
    ends = [event for event in read_events(folder) if event["kind"] == "run.end"]
    return bool(ends) and ends[-1].get("status") == "failed"


def _claim(folder: Path, config: Config) -> None:
    """Look at the data, then make the folder this run's; of two commands at the same time, one gets it."""
    from penstock.train.inspect import check_data
    from penstock.train.supervisor import only_one

    check_data(config.data, query=config.query, target=config.target)
    with only_one(folder):
        _refuse_used(folder)
        if _failed_early(folder):
            (folder / EVENTS).unlink()
        write_config(folder, config)


def _resumed(data: str, out: Path | None, anew: dict[str, Any], *, trust: bool = False) -> tuple[Path, Config]:
    """Everything comes from the run folder, except what is given anew: epochs, limit, workers, a data password."""
    if out is None:
        raise InvalidInput("--resume needs --out, the folder of the run to go on with.")
    config = read_config(out)
    if not trust:
        refuse_foreign_code(out, config)
    changed = {name: value for name, value in anew.items() if value is not None}
    if data and without_password(data) == config.data:
        changed["data"] = data
    config = check(dataclasses.replace(config, **changed))
    from penstock.train.supervisor import only_one

    with only_one(out):  # another process may be training there by the options as they are
        write_config(out, config)
    return out, config


def _absolute(data: str) -> str:
    """Local paths in full, so that a run can be resumed from another folder."""
    if "://" in data or not (os.path.exists(data) or glob.has_magic(data)):
        return data
    return os.path.abspath(data)


def _absolute_model(model: str) -> str:
    name, colon, function = model.rpartition(":")
    if colon and name.endswith(".py"):
        return f"{os.path.abspath(name)}:{function}"
    return os.path.abspath(model) if model.endswith(".keras") else model


def _metrics(folder: Path) -> dict[str, Any]:
    path = folder / METRICS
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


@contextlib.contextmanager
def _live_page(folder: Path, wanted: bool, display: Display) -> Iterator[None]:
    """The live page of this run and its neighbours, while the block runs."""
    if not wanted:
        yield
        return
    from penstock.watch.live.start import start_watch  # the server's packages are an extra

    with start_watch(folder) as page:
        display.say(f"live page: {page.url}")
        yield
