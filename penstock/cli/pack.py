"""`penstock pack`: any readable dataset into training-ready shards.

Covers: the command's options, its progress bar and its report.
Does not cover: choosing a reader (read/recognise.py), writing (penstock.write).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from penstock.cli.paths import check_there
from penstock.core.sizes import size as written_size

if TYPE_CHECKING:
    from rich.progress import Progress

    from penstock.dataset import Dataset

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
) -> None:
    """Pack a dataset into shards. Stopped halfway, the same command goes on where it was.

    Image files keep their own bytes unless a size, a quality or --lossless asks for others.

    Examples:

        penstock pack photos/ packed/ --format webdataset --size 256

        penstock pack 'logs/*.csv' packed/ --shard-size 512MB

        penstock pack photos/ s3://bucket/packed --format tfrecord

        penstock pack sorted.parquet packed/ --shuffle
    """
    check_there(src)
    from penstock.write.encode import Format
    from penstock.write.run import already_written

    asked = size is not None or quality != QUALITY or lossless
    dataset = _opened(src, size, keep=not asked)
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
    from penstock.read.recognise import kind_of, open_any

    options: dict[str, Any] = {"decode": _STORED} if keep and kind_of(src) in ("tar", "tgz") else {}
    return open_any(src, size=size, **options)
