"""What sources of files have in common.

Covers: reading their files through a cache, whether some are remote, their name in messages, where damage is reported.
Does not cover: what is in the files (the rooms beside this file), opening them (storage/).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Generic, Protocol, Self, TypeVar

from penstock.core.byte_cache import ByteCache
from penstock.core.source import OnError
from penstock.sources.storage import files as storage


def name_of(kind: str, paths: Sequence[str]) -> str:
    """A label for plans and messages."""
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{kind}({paths[0]}{more})"


class PathSource:
    """A source that holds its paths itself."""

    def __init__(self, paths: Sequence[str], label: str, on_error: OnError | None) -> None:
        self.paths, self.label, self.on_error = paths, label, on_error or OnError()

    def through(self, cache: ByteCache) -> Self:
        """The same source, its remote files read through a cache."""
        other = copy.copy(self)
        other.paths = storage.through(self.paths, cache)
        return other

    @property
    def remote(self) -> bool:
        return storage.any_remote(self.paths)


class FileSet(Protocol):
    """Files of one kind, and what is known of each."""

    @property
    def paths(self) -> Sequence[str]: ...

    def through(self, cache: ByteCache) -> Self: ...


F = TypeVar("F", bound=FileSet)


class FileSetSource(Generic[F]):
    """A source whose files are one object, which remembers what it found out about them."""

    def __init__(self, files: F, label: str, on_error: OnError) -> None:
        self.files, self.label, self.on_error = files, label, on_error

    def through(self, cache: ByteCache) -> Self:
        """The same source, its remote files read through a cache."""
        other = copy.copy(self)
        other.files = self.files.through(cache)
        return other

    @property
    def remote(self) -> bool:
        return storage.any_remote(self.files.paths)
