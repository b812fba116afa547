"""`penstock demo`: see a job being killed for memory, and `penstock train` finish the same job.

Covers: the story and its table of results.
Does not cover: making data (demo/), training (penstock.train), limits (memory/jail.py).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.arguments.backend import default_backend
from penstock.cli.train import start
from penstock.core.errors import PenstockError
from penstock.core.sizes import option_size, size
from penstock.demo.naive import IMAGE_BATCH, IMAGE_SIDE, TABLE_BATCH
from penstock.memory.jail import Outcome, run_limited
from penstock.train.config import Config, check, write_config
from penstock.watch.run_folder import read_events

if TYPE_CHECKING:
    from rich.console import Console

VAL = 0.05


@cache
def console() -> Console:
    """The console that the demonstration writes to."""
    from rich.console import Console

    return Console()


@dataclass(frozen=True)
class Result:
    """What the run of penstock showed, read from its own record."""

    samples: int
    seconds: float
    waited: float
    accuracy: float
    peak_nbytes: int


@dataclass(frozen=True)
class Pair:
    """One dataset, trained on both ways."""

    what: str
    naive: Outcome
    ours: Result


def demo(
    memory: Annotated[str, typer.Option(help="Memory that each job may use, frameworks included.")] = "1GB",
    table_size: Annotated[str, typer.Option(help="Size of the CSV file.")] = "1.5GB",
    images: Annotated[int, typer.Option(help="Number of JPEG files.")] = 8_000,
    folder: Annotated[Path, typer.Option(help="Where data and runs go; the data is removed afterwards.")] = Path(
        ".demo"
    ),
    keep: Annotated[bool, typer.Option(help="Keep the data too, for another demo or for your own trials.")] = False,
) -> None:
    """Train on data larger than memory: naively (it is killed), then with penstock train.

    Takes some minutes and 2 GB of disk. The runs stay, for penstock report and penstock watch.

    Examples:

        penstock demo

        penstock demo --memory 900MB --images 4000 --table-size 1GB --keep
    """
    limit = option_size("--memory", memory)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "runs", ignore_errors=True)
    try:
        _make(folder, option_size("--table-size", table_size), images)
        decoded = images * IMAGE_SIDE * IMAGE_SIDE * 3 * 4
        csv, pictures = folder / "table.csv", folder / "images"
        rows = [
            _compare("table", csv, f"CSV of {size(csv.stat().st_size)}", limit),
            _compare("images", pictures, f"{images:,} JPEG files, {size(decoded)} as float32", limit),
        ]
    finally:
        if not keep:
            _remove_data(folder)
    _show(rows, limit)
    runs = folder / "runs"
    console().print(f"the runs: penstock watch {runs}   or penstock report {runs / 'table'}", highlight=False)


def _make(folder: Path, table_nbytes: int, images: int) -> None:
    """Write the data, unless an earlier demo of the same sizes kept its own."""
    made, wanted = folder / "made.json", {"table_nbytes": table_nbytes, "images": images}
    if made.exists() and json.loads(made.read_text()) == wanted:
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from penstock.demo.data import SIDE, make_images, make_table

    _remove_data(folder)
    columns = (
        TextColumn("{task.description:28}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console()) as bar:
        task = bar.add_task(f"writing {size(table_nbytes)} of CSV", total=table_nbytes)
        make_table(folder / "table.csv", table_nbytes, lambda n: bar.advance(task, n))
        pictures = bar.add_task(f"writing {images:,} JPEG {SIDE}x{SIDE}", total=images)
        make_images(folder / "images", images, lambda n: bar.advance(pictures, n))
    made.write_text(json.dumps(wanted))  # last: what is half written is made again


def _remove_data(folder: Path) -> None:
    shutil.rmtree(folder / "images", ignore_errors=True)
    for name in ("table.csv", "made.json"):
        (folder / name).unlink(missing_ok=True)


def _compare(kind: str, path: Path, what: str, limit: int) -> Pair:
    console().rule(f"{what}, limit {size(limit)}")
    console().print("[bold]naive[/]: read everything, then model.fit(x, y)")
    naive = _naive(kind, path, limit)
    console().print(f"  -> {_ending(naive)}\n")
    run = path.parent / "runs" / kind
    batch = TABLE_BATCH if kind == "table" else IMAGE_BATCH
    shown = f"penstock train {path} --memory {size(limit).replace(' ', '')} --batch {batch} --epochs 1 --val {VAL}"
    shown += f" --image-size {IMAGE_SIDE}" if kind == "images" else ""
    console().print(f"[bold]penstock[/]: {shown}", highlight=False, soft_wrap=True)
    ours = _train(kind, path, run, limit)
    console().print(f"  -> finished: {ours.samples:,} samples, accuracy {ours.accuracy:.1%}\n")
    return Pair(what, naive, ours)


def _naive(kind: str, path: Path, limit: int) -> Outcome:
    env = {**os.environ, "KERAS_BACKEND": default_backend(), "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    with console().status(f"running under {size(limit)} ..."):
        argv = [sys.executable, "-m", "penstock.demo.naive", kind, str(path)]
        return run_limited(argv, limit, env=env, capture=True)


def _train(kind: str, path: Path, run: Path, limit: int) -> Result:
    """The same command that a user gives, with the same display."""
    from penstock.train.show import make_display
    from penstock.train.supervisor import INTERRUPTED

    config = Config(
        data=str(path.resolve()), memory=str(limit), batch=TABLE_BATCH if kind == "table" else IMAGE_BATCH, epochs=1,
        backend=default_backend(), image_size=IMAGE_SIDE if kind == "images" else None, val=VAL,
    )  # fmt: skip
    write_config(run, check(config))
    display = make_display(as_json=False)
    code = start(run, config, display)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code:
        raise PenstockError(f"the demonstration's own run failed (exit {code}); see {run / 'log.txt'}")
    return result_of(run)


def result_of(run: Path) -> Result:
    """What a run's events say about its last epoch."""
    samples, seconds, waited, accuracy, peak = 0, 0.0, 0.0, 0.0, 0
    for event in read_events(run):
        if event["kind"] == "train.epoch":
            samples, seconds = int(event["samples"]), float(event["seconds"])
            accuracy = float(event["logs"].get("accuracy", 0.0))
        elif event["kind"] == "train.progress":
            waited = float(event["waited_s"])
        elif event["kind"] == "memory.sample":
            peak = max(peak, int(event["used_nbytes"]))
    return Result(samples, seconds, waited / max(seconds, 1e-9), accuracy, peak)


def _ending(outcome: Outcome) -> str:
    if outcome.killed:
        return f"[red]killed[/] by the kernel for memory at {size(outcome.peak_nbytes)} (exit {outcome.returncode})"
    if outcome.returncode:
        return f"[red]failed[/] with exit {outcome.returncode} at {size(outcome.peak_nbytes)}"
    return f"[green]finished[/], peak {size(outcome.peak_nbytes)}"


def _show(rows: list[Pair], limit: int) -> None:
    from rich.table import Table

    table = Table(title=f"limit {size(limit)} ({rows[0].naive.how})")
    for column in ("data", "naive", "penstock", "peak", "samples/s", "model waited"):
        table.add_column(column)
    for row in rows:
        naive, ours = row.naive, row.ours
        ended = "killed" if naive.killed else (f"exit {naive.returncode}" if naive.returncode else "finished")
        table.add_row(
            row.what,
            ended,
            f"finished, accuracy {ours.accuracy:.1%}",
            f"{size(ours.peak_nbytes)} ({ours.peak_nbytes / limit:.0%} of the limit)",
            f"{ours.samples / max(ours.seconds, 1e-9):,.0f}",
            f"{ours.waited:.1%}",
        )
    console().print(table)
