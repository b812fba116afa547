"""`penstock pack`: any readable dataset into training-ready shards.

Covers: the command's options, its progress bar and its report.
Does not cover: choosing a reader (read/recognise/formats.py), writing (penstock.write).
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from penstock.cli.arguments.paths import check_there
from penstock.core.errors import InvalidInput
from penstock.core.sizes import size as written_size

if TYPE_CHECKING:
    from rich.progress import Progress

    from penstock.dataset import Dataset
    from penstock.write.report import WriteReport

PARTS = 16
"""Tasks that write, unless said otherwise: a number that does not depend on the cluster, so that any can go on."""
QUALITY = 95
"""As penstock.write.encode has it; a test compares them."""

_STORED = dict.fromkeys(("jpg", "jpeg", "png", "webp"), "bytes")


def pack(
    src: Annotated[
        str, typer.Argument(help="A file, folder, glob or URL: images, csv, parquet, tfrecord, tar, h5, jsonl")
    ],
    dst: Annotated[str, typer.Argument(help="Folder for the shards, local or in a store such as s3://")],
    format: Annotated[str, typer.Option(help="parquet, webdataset or tfrecord")] = "parquet",
    size: Annotated[int | None, typer.Option(help="Resize images to this height and width")] = None,
    shard_size: Annotated[str, typer.Option(help="Close a shard at this size")] = "256MB",
    quality: Annotated[
        int, typer.Option(help="JPEG quality, 1 to 100; one other than 95 compresses JPEG files anew")
    ] = QUALITY,
    lossless: Annotated[bool, typer.Option(help="Store images as PNG")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace shards of other data in DST")] = False,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Write the rows in a uniformly random order")] = False,
    seed: Annotated[int, typer.Option(help="Seed of --shuffle")] = 0,
    cluster: Annotated[str | None, typer.Option(help="Write with tasks on this Ray cluster; local starts one")] = None,
    parts: Annotated[int | None, typer.Option(help="Tasks that write, with --cluster; 16 if left out")] = None,
) -> None:
    """Pack a dataset into shards. Stopped halfway, the same command goes on where it was.

    Image files keep their own bytes unless a size, a quality or --lossless asks for others.

    Examples:

        penstock pack photos/ packed/ --format webdataset --size 256

        penstock pack 'logs/*.csv' packed/ --shard-size 512MB

        penstock pack photos/ s3://bucket/packed --format tfrecord

        penstock pack sorted.parquet packed/ --shuffle

        penstock pack s3://raw/photos s3://bucket/packed --cluster ray-head:6379 --parts 64
    """
    check_there(src)
    _check_cluster(cluster, parts, shuffle=shuffle)
    from penstock.write.encode import Format
    from penstock.write.run import already_written

    asked = size is not None or quality != QUALITY or lossless
    dataset = _opened(src, size, keep=not asked)
    if cluster is not None:
        written: dict[str, Any] = {"format": format, "shard_size": shard_size, "size": size, "quality": quality}
        written |= {"lossless": lossless, "overwrite": overwrite}
        typer.echo(str(_on_cluster(dataset, dst, cluster, PARTS if parts is None else parts, written)))
        return
    pace = Pace((0, 0) if overwrite else already_written(dst))
    with _progress_bar() as bar:
        task = bar.add_task("packing", total=dataset.cardinality, rate="")

        def progress(rows: int, nbytes: int) -> None:
            bar.update(task, completed=rows, description=written_size(nbytes), rate=pace.at(rows, nbytes))

        report = dataset.write(
            dst, cast(Format, format), shard_size=shard_size, size=size, quality=quality, lossless=lossless,
            overwrite=overwrite, shuffle=seed if shuffle else None, progress=progress,
        )  # fmt: skip
    typer.echo(str(report))
    typer.echo(f"written, read back and checked; {pace.at(report.rows, report.nbytes)}", err=True)


def _check_cluster(cluster: str | None, parts: int | None, *, shuffle: bool) -> None:
    if cluster is None and parts is not None:
        raise InvalidInput("--parts goes with --cluster: one process writes one part after the other anyway.")
    if cluster is not None and shuffle:
        raise InvalidInput("--shuffle needs all rows in one place, and --cluster has each task write its own. Use one.")
    if parts is not None and parts < 1:
        raise InvalidInput(f"--parts must be at least 1, not {parts}.")


def _on_cluster(dataset: Dataset, dst: str, cluster: str, parts: int, options: dict[str, Any]) -> WriteReport:
    """Each part written by a task on Ray; a line on stderr for each that is done."""
    from penstock.distribute.on_ray import tasks
    from penstock.write.parts import begin_parts, joined, write_part

    where = dst if "://" in dst else os.path.abspath(dst)
    begun = begin_parts(where, parts, overwrite=options["overwrite"])
    reports = []
    for report in tasks(cluster, write_part, [(dataset, where, part, options) for part in begun]):
        reports.append(report)
        typer.echo(f"{len(reports)} of {parts} parts: {report}", err=True)
    return joined(reports)


def _progress_bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )  # fmt: skip
    return Progress(*columns, console=Console(stderr=True), transient=True)


class Pace:
    """Rows and bytes a second of this call; what an earlier one wrote does not count."""

    def __init__(self, before: tuple[int, int]) -> None:
        self._began_s = time.monotonic()
        self._before = before

    def at(self, rows: int, nbytes: int) -> str:
        """The pace up to now, in words."""
        seconds = time.monotonic() - self._began_s
        new, new_nbytes = rows - self._before[0], nbytes - self._before[1]
        if new <= 0 or seconds <= 0:
            return "nothing new"
        return f"{new / seconds:,.0f} rows/s, {written_size(new_nbytes / seconds)}/s"


def _opened(src: str, size: int | None, *, keep: bool) -> Dataset:
    """The source; pictures inside tar files stay bytes if nothing else is asked of them."""
    from penstock.read.recognise.formats import kind_of, open_any

    options: dict[str, Any] = {"decode": _STORED} if keep and kind_of(src) in ("tar", "tgz") else {}
    return open_any(src, size=size, **options)
