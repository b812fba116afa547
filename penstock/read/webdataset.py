"""`read_webdataset`: samples in tar files.

Covers: checking the call, guessing the columns, choosing between rows and streams.
Does not cover: reading (sources/tar/source.py), decoding (sources/tar/columns.py).
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from penstock.core.errors import BadData, InvalidInput, NotFound
from penstock.core.sizes import Size, parse_size
from penstock.core.sizes import size as written_size
from penstock.core.source import OnError
from penstock.core.tree import Tree, names, tree_of
from penstock.dataset import Dataset
from penstock.read.array_columns import either
from penstock.sources.images.column import Pictures
from penstock.sources.images.decode import ImageOptions
from penstock.sources.records.shards import Files
from penstock.sources.records.span_index import SpanIndex, place
from penstock.sources.storage import files as storage
from penstock.sources.storage.inflate import GZIP, PLAIN
from penstock.sources.tar.columns import KINDS, RAW, Sample, SampleParser, columns_of, sample_of, tree_asked
from penstock.sources.tar.index import SampleWalk, stream_samples
from penstock.sources.tar.source import TarRows, TarStream

SUFFIXES = (".tar", ".tar.gz", ".tgz")

LOOKED_AT = 16
"""Samples from which columns are guessed."""

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


def read_webdataset(
    tars: storage.Paths,
    *,
    features: str | None = None,
    label: str | None = None,
    sample: Any = None,
    columns: Sequence[str] | None = None,
    decode: Mapping[str, str] | Literal["auto"] | None = "auto",
    size: int | tuple[int, int] | None = None,
    image_options: Mapping[str, Any] | None = None,
    access: Literal["auto", "rows", "stream"] = "auto",
    max_sample: Size = "1GB",
    on_error: Literal["raise", "skip"] = "raise",
    max_errors: float | None = None,
) -> Dataset:
    """Read tar files in which files that share a key are one sample: 000.jpg and 000.cls.

    A sample is a dict with a column for each extension: images are decoded (and resized to `size`), cls is an integer,
    txt is text, json is decoded, npy is an array, all else is bytes. `features="jpg", label="cls"` shows
    `(image, label)`, and so does `sample=("jpg", "cls")`, which may also be a dict or nested;
    `columns` chooses without changing the dict. "jpg;png" is whichever is there, "json.label" a field of the JSON,
    "__key__" the key. `decode` is None for bytes only, or maps extensions to "image", "int", "text", "json", "npy" or
    "bytes". `tars` may be paths, globs, folders, URLs and ranges such as "train-{000..099}.tar".

    Plain local files are indexed once and read by row (access="rows": exact shuffle); compressed and remote ones are
    streamed. on_error="skip" leaves out samples that are damaged or lack a column, up to `max_errors`.

    >>> import io, os, tarfile, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "a.tar")
    >>> with tarfile.open(path, "w") as tar:
    ...     for name, data in (("0.txt", b"good"), ("0.cls", b"1")):
    ...         entry = tarfile.TarInfo(name)
    ...         entry.size = len(data)
    ...         tar.addfile(entry, io.BytesIO(data))
    >>> str(read_webdataset(path, sample=("txt", "cls")).schema)
    '(txt: str, cls: int64)'
    """
    if access not in ("auto", "rows", "stream"):
        raise InvalidInput(f"access must be 'auto', 'rows' or 'stream', not {access!r}.")
    longest = parse_size(max_sample)
    if not 0 < longest < 0xFFFFFFFF:
        raise InvalidInput(f"max_sample must be above 0 and below 4 GiB, not {max_sample!r}.")
    policy = OnError(on_error, max_errors)
    paths = storage.expand(_ranges(tars), suffixes=SUFFIXES)
    files = Files(paths, list(map(_compression, paths)))
    options = ImageOptions(**{**(image_options or {}), **({"size": _height_width(size)} if size else {})})
    shown = _shown(sample, features, label)
    if shown is not None and columns is not None:
        raise InvalidInput("Give sample= or columns=, not both: sample= already says which columns there are.")
    wanted = [columns] if isinstance(columns, str) else columns
    if shown is not None:
        wanted = list(dict.fromkeys(names(shown)))
    found = columns_of(wanted, _first(files, longest, policy), _kinds(decode), lambda name: Pictures(options))
    parser = SampleParser(found, tree_of([c.name for c in found]) if shown is None else shown)
    name = os.fspath(tars) if isinstance(tars, (str, os.PathLike)) else f"{len(paths)} files"
    packed = files.not_plain()
    if packed and access == "rows":
        raise InvalidInput(f"access='rows' needs addresses, which compressed files do not have: {packed}.")
    if packed or access == "stream" or (access == "auto" and storage.any_remote(paths)):
        return Dataset.of(TarStream(files, parser, longest, policy, name))
    return Dataset.of(TarRows(SpanIndex(paths, SampleWalk()), parser, longest, policy, name))


def _shown(sample: Any, features: str | None, label: str | None) -> Tree | None:
    """The tree of a sample, where the call says it; None for a dict of all columns."""
    if label is not None and features is None:
        raise InvalidInput(f"label={label!r} without features=: name the member that is the input, too, such as 'jpg'.")
    found = either("sample", sample, "features", features if label is None else (features, label))
    return None if found is None else tree_asked(found)


def _kinds(decode: Mapping[str, str] | str | None) -> Mapping[str, str]:
    if decode is None:
        return {}
    if decode == "auto":
        return KINDS
    if not isinstance(decode, Mapping):
        raise InvalidInput(f"decode must be 'auto', None or a dict of extensions, not {decode!r}.")
    for extension, kind in decode.items():
        if kind not in {*KINDS.values(), RAW}:
            raise InvalidInput(f"decode={{{extension!r}: {kind!r}}}: choose image, int, text, json, npy or bytes.")
    return {**KINDS, **{extension.lower(): kind for extension, kind in decode.items()}}


def _first(files: Files, longest: int, policy: OnError) -> list[Sample]:
    """The first samples there are; with on_error="skip", those that can be read."""
    found: list[Sample] = []
    for path, compression in files:
        samples = stream_samples(path, compression, longest)
        try:
            for key, group in itertools.islice(samples, LOOKED_AT):
                made = sample_of(key, group, place(path, group[0].header), written_size(longest))
                if not made.error:
                    found.append(made)
                elif policy.mode == "raise":
                    raise BadData(made.where, made.error)
        except BadData:
            if policy.mode == "raise":
                raise
        finally:
            samples.close()  # type: ignore[attr-defined]
        if found:
            return found
    raise NotFound("There is no sample in the tar files: no member has a name such as key.extension.")


def _compression(path: str) -> str:
    return GZIP if storage.read_range(path, 0, 2) == b"\x1f\x8b" else PLAIN


def _ranges(tars: storage.Paths) -> Iterator[storage.PathLike]:
    """Paths with "{000..099}" written out, one after the other."""
    for path in [tars] if isinstance(tars, (str, os.PathLike)) else tars:
        text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
        match = _RANGE.search(text)
        if match is None or os.path.exists(text):
            yield path
            continue
        low, high = match.groups()
        if not 0 <= int(high) - int(low) < 1_000_000:
            raise InvalidInput(f"{match.group()} in {text!r} is not a range of up to a million files.")
        for number in range(int(low), int(high) + 1):
            yield from _ranges(text[: match.start()] + str(number).zfill(len(low)) + text[match.end() :])


def _height_width(size: int | tuple[int, int]) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(n, int) and 0 < n <= 65535 for n in pair):
        raise InvalidInput(f"size must be (height, width) in pixels, not {size!r}.")
    return pair
