"""`read_tfrecords`: TFRecord files of examples or of anything else.

Covers: checking the call, guessing the features, choosing between rows, stretches and streams.
Does not cover: reading (sources/tfrecord/source.py), parsing (sources/tfrecord/columns.py).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from penstock.core.errors import BadData, InvalidInput, NotFound
from penstock.core.sizes import Size, parse_size
from penstock.core.source import OnError
from penstock.dataset import Dataset
from penstock.read.array_columns import with_label
from penstock.sources.images.column import pictures_of
from penstock.sources.images.decode import ImageOptions
from penstock.sources.records.shards import Files
from penstock.sources.records.span_index import SpanIndex
from penstock.sources.storage import files as storage
from penstock.sources.storage.inflate import AUTO, GZIP, PLAIN, ZLIB
from penstock.sources.tfrecord.columns import ExampleParser
from penstock.sources.tfrecord.features import Feature, FeatureLike, features_of
from penstock.sources.tfrecord.index import FrameWalk, compression_of, stream
from penstock.sources.tfrecord.infer import Outline, infer, outline_of
from penstock.sources.tfrecord.raw import RawParser
from penstock.sources.tfrecord.source import RecordParser, TFRecordRows, TFRecordStream, TFRecordUnits

SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec", ".record", ".records", ".gz", ".gzip", ".zlib")

LOOKED_AT = 64
"""Records from which features are guessed."""

ROW_NBYTES = 4000
"""Mean size of records from which on each is read for itself."""


def read_tfrecords(
    paths: storage.Paths,
    features: Mapping[str, FeatureLike] | str | Sequence[str] | None = None,
    *,
    sequence: Mapping[str, FeatureLike] | Sequence[str] | None = None,
    label: str | Sequence[str] | None = None,
    parse: Literal["auto", "example", "sequence"] | None = "auto",
    images: str | Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
    size: int | tuple[int, int] | None = None,
    image_options: Mapping[str, Any] | None = None,
    compression: str | None = AUTO,
    check_crc: bool = True,
    access: Literal["auto", "rows", "units", "stream"] = "auto",
    max_record: Size = "1GB",
    on_error: Literal["raise", "skip"] = "raise",
    max_errors: float | None = None,
) -> Dataset:
    """Read TFRecord files; TensorFlow is not needed.

    Samples are dicts of features, or `(x, y)` with `label`, which need not be among `features`. `features` maps names
    to dtypes ("float32", bytes, str), to (dtype, shape) with None for an open length, or to tf.io feature objects;
    names alone, or nothing, are guessed from the first records. `sequence` does the same for the feature lists of
    SequenceExample records. `parse=None` yields raw records as bytes. `images` names bytes features to decode (a dict
    gives ImageOptions to each), resized to `size`. `compression` is "auto", "GZIP", "ZLIB" or None.

    `access` is "rows" (any record for itself, exact shuffle), "units" (stretches of about 8 MB) or "stream" (whole
    files, no index); "auto" takes rows for images and records above 4 KB, streams compressed and remote files. A record
    above `max_record` is damage. on_error="skip" leaves damaged records out and, where a length cannot be trusted, the
    rest of that file, up to `max_errors` (a count, or below 1 a fraction of the rows).

    >>> import os, tempfile
    >>> from penstock.sources.tfrecord.write import encode_example, write_records
    >>> path = os.path.join(tempfile.mkdtemp(), "a.tfrecord")
    >>> write_records(path, (encode_example({"x": [0.5, 1.5], "y": i}) for i in range(3)))
    3
    >>> str(read_tfrecords(path, label="y").schema)
    '(x: float32[2], y: int64)'
    """
    policy = OnError(on_error, max_errors)
    walk = FrameWalk(check_crc, _bounded(max_record))
    _check(parse, access, compression)
    files = _files(storage.expand(paths, suffixes=SUFFIXES), compression)
    if parse is None:
        if features is not None or sequence is not None or images is not None or label is not None:
            raise InvalidInput(
                "parse=None yields raw records, so features=, sequence=, images= and label= have no use."
            )
        parser: RecordParser = RawParser(check_crc)
    else:
        options = ImageOptions(**{**(image_options or {}), **({"size": _height_width(size)} if size else {})})
        pictures = pictures_of(images, options)
        found = _features(files, walk, policy, parse, with_label(features, label), sequence)
        shown = [_pictured(f) if f.name in pictures else f for f in found]
        for name in pictures:
            if name not in [f.name for f in found]:
                raise NotFound(f"images={name!r} is not among the features: {', '.join(f.name for f in found)}.")
        parser = ExampleParser(shown, label=label, pictures=pictures, check=check_crc)
    name = os.fspath(paths) if isinstance(paths, (str, os.PathLike)) else f"{len(files.paths)} files"
    return Dataset.of(_source(files, parser, walk, policy, (access, name, images is not None)))


def _source(
    files: Files, parser: RecordParser, walk: FrameWalk, policy: OnError, how: tuple[str, str, bool]
) -> TFRecordRows | TFRecordUnits | TFRecordStream:
    access, name, pictured = how
    packed = files.not_plain()
    if packed and access in ("rows", "units"):
        raise InvalidInput(f"access={access!r} needs addresses, which compressed files do not have: {packed}.")
    remote = storage.any_remote(files.paths)
    if packed or access == "stream" or (remote and access == "auto"):
        return TFRecordStream(files, parser, walk, policy, name)
    index = SpanIndex(files.paths, walk)
    if access == "auto":
        sizes = index.sizes()
        access = "rows" if pictured or (len(sizes) and sizes.mean() > ROW_NBYTES) else "units"
    return (TFRecordRows if access == "rows" else TFRecordUnits)(index, parser, walk, policy, name)


def _features(
    files: Files,
    walk: FrameWalk,
    policy: OnError,
    parse: str,
    features: Mapping[str, FeatureLike] | Sequence[str] | None,
    sequence: Mapping[str, FeatureLike] | Sequence[str] | None,
) -> list[Feature]:
    """The features asked for; the first records tell what was left open."""
    outlines = _outlines(files, walk, policy)
    if not outlines and features is None:
        raise NotFound("There is no record to guess features from: the files are empty. Give features=.")
    seen, lists = infer(outlines)
    sequential = parse == "sequence" or sequence is not None or any(o.sequence for o in outlines)
    found = features_of(features, seen)
    if parse != "example" and sequential:
        # Naming features of one sort only leaves the other sort out.
        wanted = {} if sequence is None and features is not None else sequence
        listed = features_of(wanted, lists, listed=True)
        found = (found if features is not None or sequence is None else []) + listed
    return found


def _outlines(files: Files, walk: FrameWalk, policy: OnError) -> list[Outline]:
    """Outlines of the first records there are; with on_error="skip", of those that can be read."""
    found: list[Outline] = []
    for path, compression in files:
        blocks = stream(path, compression, walk, nbytes=1 << 20, rows=LOOKED_AT)
        try:
            for frames in blocks:
                raw = RawParser(walk.check).block(frames, OnError(policy.mode))
                for row in range(len(raw)):
                    try:
                        found.append(outline_of(raw.columns["record"][row].as_py(), raw.where(row)))
                    except BadData:
                        if policy.mode == "raise":
                            raise
                if len(found) >= LOOKED_AT or frames.buf.nbytes > 1 << 24:
                    break
        except BadData:
            if policy.mode == "raise":
                raise
        finally:
            blocks.close()  # type: ignore[attr-defined]
        if found:
            break
    return found


def _pictured(feature: Feature) -> Feature:
    if feature.kind != 1 or feature.listed:
        raise InvalidInput(f"images={feature.name!r}: only features of bytes can be decoded as images.")
    return dataclasses.replace(feature, image=True, shape=(), text=False)


def _files(paths: Sequence[str], compression: str | None) -> Files:
    if compression is None or compression == PLAIN:
        return Files(paths, [PLAIN] * len(paths))
    if compression.upper() in (GZIP, ZLIB):
        return Files(paths, [compression.upper()] * len(paths))
    return Files(paths, list(map(compression_of, paths)))


def _check(parse: str | None, access: str, compression: str | None) -> None:
    if parse not in ("auto", "example", "sequence", None):
        raise InvalidInput(f"parse must be 'auto', 'example', 'sequence' or None, not {parse!r}.")
    if access not in ("auto", "rows", "units", "stream"):
        raise InvalidInput(f"access must be 'auto', 'rows', 'units' or 'stream', not {access!r}.")
    if compression is not None and compression.upper() not in ("AUTO", "", GZIP, ZLIB):
        raise InvalidInput(f"compression must be 'auto', 'GZIP', 'ZLIB' or None, not {compression!r}.")


def _bounded(max_record: Size) -> int:
    longest = parse_size(max_record)
    if not 0 < longest < 1 << 32:
        raise InvalidInput(f"max_record must be above 0 and below 4 GiB, not {max_record!r}.")
    return longest


def _height_width(size: int | tuple[int, int]) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(n, int) and 0 < n <= 65535 for n in pair):
        raise InvalidInput(f"size must be (height, width) in pixels, not {size!r}.")
    return pair
