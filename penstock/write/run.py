"""Write a dataset as shards: in bounded memory, all or nothing for each file, and further after a kill.

Covers: cutting shards, naming them once complete, the manifest with the position after each, reading back.
Does not cover: what is in a file (formats.py, encode.py), where files go (folder.py).

A shard is cut by the bytes that went into it, which the data alone decides; and the manifest holds the position right
after each finished shard. So a write that was killed and started again gives the same files as one that was not.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.core.block import Block
from penstock.core.errors import DataError, InvalidInput, PenstockError
from penstock.core.sizes import Size, parse_size
from penstock.core.tree import flatten
from penstock.plan.ranks import without_shards
from penstock.plan.rewrite import batched
from penstock.plan.steps import Batch
from penstock.write.blocks import BlockReader, shard_of
from penstock.write.columns import is_pixels, stored_kind
from penstock.write.encode import BlockEncoder
from penstock.write.folder import Destination, folder_of
from penstock.write.formats import (
    GROUP_COST,
    GROUP_NBYTES,
    SUFFIX,
    Digested,
    ParquetShard,
    RecordShard,
    ShardFile,
    TarShard,
    count_rows,
    digest_of,
)
from penstock.write.raw import undecoded
from penstock.write.report import WriteReport

if TYPE_CHECKING:
    from penstock.dataset import Dataset

MANIFEST = "_manifest.json"
_VERSION = 2
_SLICE_NBYTES = 1_000_000
_TIGHT_NBYTES = 1_000_000_000
_SLICES_PER_SHARD = 16
"""A shard ends after a whole slice: no more than a sixteenth too large."""

Progress = Callable[[int, int], None]
"""Called with all rows and bytes written so far."""

Slices = Iterator[tuple[Block, Any]]


@dataclass
class Manifest:
    """What is finished, and where to go on."""

    made_by: dict[str, Any]
    shards: list[dict[str, Any]]
    position: dict[str, Any] | None = None
    done: bool = False
    schema: str | None = None
    """Of Parquet shards: all have that of the first, written in Arrow's own form."""

    @property
    def rows(self) -> int:
        return sum(int(shard["rows"]) for shard in self.shards)

    @property
    def nbytes(self) -> int:
        return sum(int(shard["nbytes"]) for shard in self.shards)


@dataclass(frozen=True)
class WriteJob:
    """One call of `write`."""

    rows: Dataset
    folder: Destination
    partial: str
    encoder: BlockEncoder
    limit: int
    manifest: Manifest
    progress: Progress | None

    def save(self) -> None:
        self.folder.save(MANIFEST, json.dumps(asdict(self.manifest)).encode())


def write(
    dataset: Dataset,
    folder: str | os.PathLike[str],
    *,
    encoder: BlockEncoder,
    shard_size: Size = "256MB",
    overwrite: bool = False,
    shuffle: int | None = None,
    progress: Progress | None = None,
) -> WriteReport:
    """Write every row of `dataset` to shards in `folder`, continuing what an earlier call left unfinished.

    With a seed as `shuffle` the rows are in a uniformly random order.
    """
    limit = parse_size(shard_size)
    if limit < 1:
        raise InvalidInput("write: shard_size must be at least 1 byte.")
    where = folder_of(folder)
    rows = prepared(dataset, encoder, shuffle)
    shard = shard_of(rows.node)
    made_by = {
        "version": _VERSION, "encoder": asdict(encoder), "shard_nbytes": limit, **rows.identity(),
        "rank": None if shard is None else [shard.index, shard.world],
    }  # fmt: skip
    try:
        with where.taken() as partial:
            manifest = _started(where, json.loads(json.dumps(made_by)), overwrite)
            if not manifest.done:
                _write_rest(WriteJob(rows, where, partial, encoder, limit, manifest, progress))
            return _verified(where, manifest, encoder.format)
    except OSError as error:
        if isinstance(error, PenstockError):
            raise
        raise DataError(
            f"write: {os.fspath(folder)!r} cannot be written: {error.strerror or error}. "
            "What is finished stays; the same call goes on from there."
        ) from error


def already_written(folder: str | os.PathLike[str]) -> tuple[int, int]:
    """Rows and bytes that an earlier call has left in a folder."""
    stored = folder_of(folder).read(MANIFEST)
    if stored is None:
        return 0, 0
    manifest = Manifest(**json.loads(stored))
    return manifest.rows, manifest.nbytes


def prepared(dataset: Dataset, encoder: BlockEncoder, shuffle: int | None = None) -> Dataset:
    """The dataset whose blocks are what is stored: single rows, image files as they are, the rest encoded."""
    made = type(dataset)
    node = dataset.node
    while isinstance(node.step, Batch) and not node.step.drop_last and node.step.pad is None:
        node = node.input  # the same rows, without joining them only to take them apart
    if shuffle is not None:
        node = made(node).shuffle(seed=shuffle, exact=True).node
    rows = made(undecoded(node, encoder))
    if batched(rows.node):
        rows = rows.unbatch()
    _, leaves = flatten(made(without_shards(rows.node)).peek())  # of the whole: a part may have no rows
    pictures = any(is_pixels(value) or stored_kind(value) is not None for value in leaves.values())
    return rows.map_batches(encoder, workers="thread") if pictures or encoder.format != "parquet" else rows


def _started(folder: Destination, made_by: dict[str, Any], overwrite: bool) -> Manifest:
    """The manifest of an earlier call with the same data and options, or a new one."""
    stored = folder.read(MANIFEST)
    found = None if stored is None else Manifest(**json.loads(stored))
    if found is not None and found.made_by == made_by:
        return found
    if found is not None and not overwrite:
        raise InvalidInput(
            f"write: {folder.path('')!r} holds shards of other data or other options. "
            "Choose another folder, or overwrite them: overwrite=True, --overwrite."
        )
    for shard in () if found is None else found.shards:
        folder.remove(shard["file"])
    manifest = Manifest(made_by, [])
    folder.save(MANIFEST, json.dumps(asdict(manifest)).encode())
    return manifest


def _write_rest(job: WriteJob) -> None:
    slice_nbytes = max(1, min(_SLICE_NBYTES, job.limit // _SLICES_PER_SHARD))
    with BlockReader(job.rows, job.manifest.position, slice_nbytes) as reader:
        held = GROUP_COST * min(job.limit, GROUP_NBYTES) if job.encoder.format == "parquet" else 0
        with reader.budget.force(held + 4 * slice_nbytes, who="write"):
            slices = reader.slices()
            first = next(slices, None)
            while first is not None:
                first = _write_shard(job, reader, slices, first)
    job.manifest.done, job.manifest.position = True, None
    job.save()


def _write_shard(
    job: WriteJob, reader: BlockReader, slices: Slices, first: tuple[Block, Any]
) -> tuple[Block, Any] | None:
    """Write one shard from the slice `first` on; the first slice of the next one, or None."""
    manifest, encoder = job.manifest, job.encoder
    before_rows, before_nbytes, count = manifest.rows, manifest.nbytes, 0
    following: tuple[Block, Any] | None = first
    position = None
    with open(job.partial, "wb") as file:
        out = Digested(file)
        shard = _opened(out, encoder.format, manifest, tight=reader.budget.total < _TIGHT_NBYTES)
        while following is not None and shard.nbytes < job.limit:
            block, hold = following
            shard.add(block, hold)
            count += block.nrows
            del block, hold
            # Asked for before the next slice is pulled: it is the place right behind this one.
            position = reader.position if shard.nbytes >= job.limit else None
            if job.progress is not None:
                job.progress(before_rows + count, before_nbytes + shard.nbytes)
            following = next(slices, None)
        shard.finish()
        file.flush()
        os.fsync(file.fileno())
    name = f"shard-{len(manifest.shards):06d}{SUFFIX[encoder.format]}"
    job.folder.publish(job.partial, name)
    manifest.shards.append({"file": name, "rows": count, "nbytes": out.nbytes, "digest": out.digest})
    if isinstance(shard, ParquetShard) and shard.schema is not None:
        manifest.schema = shard.schema.serialize().to_pybytes().hex()
    manifest.position, manifest.done = position, following is None
    job.save()
    return following


def _opened(file: Digested, format: str, manifest: Manifest, *, tight: bool) -> ShardFile:
    if format == "parquet":
        known = manifest.schema
        schema = None if known is None else pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(known)))
        return ParquetShard(file, schema, tight=tight)
    return TarShard(file, manifest.rows) if format == "webdataset" else RecordShard(file)


def _verified(folder: Destination, manifest: Manifest, format: str) -> WriteReport:
    """Read every shard back: the bytes and the rows must be those that were written."""
    whole = hashlib.blake2b(digest_size=16)
    for shard in manifest.shards:
        if not _as_written(folder, shard, format):
            raise DataError(
                f"write: {folder.path(shard['file'])!r} is not as it was written. Remove the folder and write again."
            )
        whole.update(shard["digest"].encode())
    files = tuple(folder.path(shard["file"]) for shard in manifest.shards)
    return WriteReport(manifest.rows, files, manifest.nbytes, whole.hexdigest())


def _as_written(folder: Destination, shard: dict[str, Any], format: str) -> bool:
    try:
        with folder.open(shard["file"]) as file:
            if digest_of(file) != shard["digest"]:
                return False
            file.seek(0)
            return bool(count_rows(file, format) == shard["rows"])
    except FileNotFoundError:  # also NotFound
        return False
