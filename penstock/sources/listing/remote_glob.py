"""Globs over remote folders, matched name by name while folders are listed.

Covers: which names of a folder match, which folders may hold matches, what all matches begin with.
Does not cover: listing (remote_walk.py), local globs (sample_files.py).

"*", "?" and "[...]" stay within a name; "**" is any number of folders. Hidden names match as any other, as in fsspec.
"""

from __future__ import annotations

import fnmatch
import glob
import re
from dataclasses import dataclass
from functools import cached_property

ANY = "**"

_WEB = re.compile(r"[*\[]")


def split(url: str) -> tuple[str, Glob] | None:
    """The folder above a URL's first wildcard and what is wanted below; None if it has none, or cannot be walked.

    Chained URLs name one file, and buckets are not listed: see shard_files.py. On the web only "*" makes a pattern,
    for "?" begins what a URL asks for, and brackets may stand in it.
    """
    head, _, path = url.partition("://")
    bucket, *parts = path.split("/")
    web = head.startswith("http")
    if "::" in url or glob.has_magic(bucket) or not (("*" in path) if web else glob.has_magic("/".join(parts))):
        return None
    first = next(i for i, part in enumerate(parts) if (_WEB.search(part) if web else glob.has_magic(part)))
    pattern = tuple(part for part in parts[first:] if part)
    return "/".join([f"{head}://{bucket}", *parts[:first]]).rstrip("/"), Glob(pattern, frozenset([0]))


@dataclass(frozen=True)
class Glob:
    """What is wanted in one folder: the parts of a pattern, and which of them may come next here."""

    parts: tuple[str, ...]
    at: frozenset[int]

    @cached_property
    def _open(self) -> frozenset[int]:
        """Parts that may come next; "**" may also be no folder at all."""
        found = set(self.at)
        for i in sorted(self.at):
            while i < len(self.parts) and self.parts[i] == ANY:
                i += 1
                found.add(i)
        return frozenset(found)

    @cached_property
    def _last(self) -> re.Pattern[str]:
        """One expression for the names of files: what may come last."""
        after = {i for i in self._open if all(part == ANY for part in self.parts[i + 1 :]) and i < len(self.parts)}
        texts = ["*" if self.parts[i] == ANY else self.parts[i] for i in sorted(after)]
        return re.compile("|".join(fnmatch.translate(text) for text in texts) if texts else r"(?!)")

    @property
    def start(self) -> str:
        """What all wanted names begin with."""
        if len(self._open) != 1:
            return ""
        part = self.parts[next(iter(self._open))]
        return re.split(r"[*?\[]", part, maxsplit=1)[0]

    def files(self, names: list[str]) -> list[str]:
        """The names that match."""
        matches = self._last.match
        return [name for name in names if matches(name)]

    def folder(self, name: str) -> Glob | None:
        """What is wanted in a folder below; None if nothing in it can match."""
        after = set()
        for i in self._open:
            if i < len(self.parts) and self.parts[i] == ANY:
                after.add(i)
            elif i < len(self.parts) - 1 and fnmatch.fnmatchcase(name, self.parts[i]):
                after.add(i + 1)
        return Glob(self.parts, frozenset(after)) if after else None
