"""One dataset written by several tasks, each its own part in a folder of its own.

Covers: what a task writes, and with how much memory; parts of another number in the same folder are refused.
Does not cover: where tasks run (distribute/on_ray.py), writing (run.py).

Each part goes on where it was, so that a task that is lost costs what it had not finished.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.core.errors import InvalidInput
from penstock.memory.limits import current_limit, limit
from penstock.write.folder import folder_of
from penstock.write.report import WriteReport

if TYPE_CHECKING:
    from penstock.dataset import Dataset

PARTS = "_parts.json"
"""In the folder above the parts: how many there are."""


@dataclass(frozen=True)
class TaskPart:
    """One of `count` parts of a dataset."""

    index: int
    count: int

    def path(self, folder: str) -> str:
        """Where its shards go."""
        return f"{folder.rstrip('/')}/part-{self.index:05d}"


def begin_parts(folder: str, count: int, *, overwrite: bool) -> list[TaskPart]:
    """The parts to write; refuses a folder that is divided otherwise, whose rows would be there twice."""
    where = folder_of(folder)
    stored = where.read(PARTS)
    before = count if stored is None else int(json.loads(stored)["parts"])
    if before != count:
        raise InvalidInput(
            f"{folder!r} holds {before} parts, not {count}. Go on with --parts {before}, or choose another folder."
        )
    if stored is None and where.read("_manifest.json") is not None and not overwrite:
        raise InvalidInput(f"{folder!r} holds shards already. Choose another folder.")
    with where.taken():
        where.save(PARTS, json.dumps({"parts": count}).encode())
    return [TaskPart(index, count) for index in range(count)]


def write_part(beside: int, dataset: Dataset, folder: str, part: TaskPart, options: Mapping[str, Any]) -> WriteReport:
    """Write one part, in its share of the memory that `beside` tasks have together."""
    with limit(current_limit().nbytes // beside):
        return dataset.shard(part.index, part.count).write(part.path(folder), **options)


def joined(reports: Iterable[WriteReport]) -> WriteReport:
    """All parts as one, in the order of their names."""
    found = sorted(reports, key=lambda report: report.files)
    whole = hashlib.blake2b(digest_size=16)
    for report in found:
        whole.update(report.checksum.encode())
    files = tuple(file for report in found for file in report.files)
    return WriteReport(
        sum(report.rows for report in found), files, sum(report.nbytes for report in found), whole.hexdigest()
    )
