"""Shard files of samples, whatever stands between them: what TFRecord and tar sources have in common.

Covers: names, schema and fingerprint of a list of files, rows through an index of spans, files as units of a stream.
Does not cover: finding samples (sources/tfrecord/index.py, sources/tar/index.py), parsing them
(sources/tfrecord/columns.py, sources/tar/columns.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from penstock.core.byte_cache import ByteCache
from penstock.core.schema import Schema
from penstock.core.source import OnError
from penstock.sources.from_files import PathSource
from penstock.sources.records.span_index import SpanIndex, fingerprint
from penstock.sources.storage import files as storage
from penstock.sources.storage.inflate import PLAIN
from penstock.sources.storage.unchanged import Unchanged


class ShardParser(Protocol):
    """Its `repr` differs where its blocks would."""

    @property
    def schema(self) -> Schema: ...


P = TypeVar("P", bound=ShardParser)
R = TypeVar("R")


@dataclass(frozen=True)
class Files:
    """Shard files and how each is compressed: one text for all that are compressed alike, so 8 bytes a file."""

    paths: Sequence[str]
    compressions: Sequence[str]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return zip(self.paths, self.compressions, strict=True)

    def not_plain(self) -> str | None:
        """The first compressed file, if there is one."""
        return next((path for path, compression in self if compression != PLAIN), None)


class Shards(PathSource, Generic[P, R]):
    """Files, how samples are found in them (`rule`) and what becomes of them (`parser`)."""

    kind: ClassVar[str]

    def __init__(self, paths: Sequence[str], parser: P, rule: R, on_error: OnError, name: str) -> None:
        super().__init__(paths, f"{self.kind}({name})", on_error)
        self.parser, self.rule = parser, rule

    def schema(self) -> Schema:
        return self.parser.schema

    def fingerprint(self) -> str:
        """Files, their stamps, and what is taken out of them."""
        return fingerprint(self.paths, self.rule, self.parser)


class IndexedShards(Shards[P, R]):
    """Files whose samples are known by place."""

    def __init__(self, index: SpanIndex, parser: P, rule: R, on_error: OnError, name: str) -> None:
        super().__init__(index.paths, parser, rule, on_error, name)
        self.index = index

    def through(self, cache: ByteCache) -> Self:
        other = super().through(cache)
        other.index = self.index.through(other.paths)
        return other

    def num_rows(self) -> int:
        self.index.tell_damage(self.on_error)
        return len(self.index)


class StreamedShards(Shards[P, R]):
    """Files that are read from their start: a unit is a file."""

    def __init__(self, files: Files, parser: P, rule: R, on_error: OnError, name: str) -> None:
        super().__init__(files.paths, parser, rule, on_error, name)
        self.compressions = files.compressions
        self._unchanged = Unchanged(len(files.paths))

    def check(self, unit: int) -> None:
        """Raise `FileChanged` if a file is not the one that was met first."""
        self._unchanged.check(unit, self.paths[unit])

    def num_units(self) -> int:
        return len(self.paths)

    def num_rows(self) -> None:
        return None

    def decoded_nbytes(self) -> int:
        """As much as is stored, or four times that where it is compressed; how far samples grow is not known."""
        files = zip(self.paths, self.compressions, strict=True)
        return sum(storage.file_size(path) * (1 if kind == PLAIN else 4) for path, kind in files)
