"""A teacher's outputs on disk, found again row by row.

Covers: writing them in one streaming pass that can be taken up again, and looking them up for batches in any order.
Does not cover: what is done with them (distill.py).

A row is known by a 64-bit fingerprint of its bytes, so shuffling between passes does no harm. 16 bytes a row are
held in memory, on a lease; the outputs stay on disk. Inputs that are augmented at random are never seen twice: they are
refused by name, and need a live teacher.

A pass that was cut short leaves whole rows (outputs are written before their keys). The next pass runs the teacher only
on rows that are not there yet, in whatever order they come.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np

from penstock.compress.data import Array, Batches, Inputs, Outputs, arrays, bare, count, pairs, row_keys, rows
from penstock.compress.leases import held
from penstock.core.errors import BadData, DataError, InvalidInput

Keys = np.ndarray[Any, np.dtype[np.uint64]]
BEGUN, DONE, KEYS = "begun.json", "about.json", "keys.u64"


class Logits:
    """Stored outputs of a teacher. Call it with a batch of inputs."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            about = json.loads((self.folder / DONE).read_text())
            number = (self.folder / KEYS).stat().st_size // 8
            self._values = {
                name: np.memmap(_outputs(self.folder, i), dtype=np.float32, mode="r", shape=(number, *shape))
                for i, (name, shape) in enumerate(about["outputs"])
            }
        except (OSError, ValueError, KeyError) as error:
            raise BadData(str(folder), f"not a finished store of a teacher's outputs: {error}") from error
        self.teacher = str(about["teacher"])
        lease = held(24 * number, "the index of a teacher's outputs")
        keys = np.fromfile(self.folder / KEYS, dtype=np.uint64)
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        lease.resize(16 * number)  # the unsorted keys go
        self._close = weakref.finalize(self, lease.close)

    def __len__(self) -> int:
        return len(self._keys)

    def __call__(self, x: Inputs) -> Outputs:
        """The teacher's outputs for these rows."""
        wanted = row_keys(x)
        places = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        lost = int((self._keys[places] != wanted).sum())
        if lost:
            raise InvalidInput(
                f"{lost} of {len(wanted)} rows of a batch were not among the {len(self)} rows that the teacher saw. "
                "Random augmentation makes new rows in each pass: distill with cache=False, a live teacher."
            )
        return bare({name: np.asarray(values[self._order[places]]) for name, values in self._values.items()})

    def close(self) -> None:
        """Give the index back."""
        self._close()

    @classmethod
    def write(cls, predict: Callable[[Inputs], Outputs], batches: Batches, folder: str | Path, teacher: str) -> Logits:
        """Run the teacher once over the batches, one in memory at a time; takes up a pass that was cut short."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        (target / DONE).unlink(missing_ok=True)
        writer = _Writer(target, teacher)
        try:
            with held(16 * writer.rows, "the keys of a teacher's outputs"), ExitStack() as files:
                known = np.sort(np.fromfile(target / KEYS, dtype=np.uint64)) if writer.rows else np.empty(0, np.uint64)
                for x, _ in pairs(batches):
                    writer.add(predict, x, known, files)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise DataError(
                f"The disk under {target} is full after the outputs of {writer.rows} rows. Name a folder with more "
                "room (cache='/other/folder'), or keep the teacher live (cache=False)."
            ) from error
        if not writer.about["outputs"]:
            raise InvalidInput("data holds no batch, so the teacher has nothing to say.")
        # Written last: a store without it was cut short, and is finished before it is used.
        (target / DONE).write_text(json.dumps(writer.about))
        return cls(target)


class _Writer:
    """Appends rows to the files of a store, behind the whole ones that are there."""

    def __init__(self, folder: Path, teacher: str) -> None:
        self.folder, self.rows = folder, 0
        self.about: dict[str, Any] = {"teacher": teacher, "outputs": []}
        self.files: list[IO[bytes]] = []
        try:
            begun = json.loads((folder / BEGUN).read_text())
        except (OSError, ValueError):
            return
        if begun["teacher"] != teacher:
            raise InvalidInput(f"{folder} holds the outputs of another teacher. Name another folder, or remove it.")
        self.about = begun
        sizes = [4 * int(np.prod(shape)) for _, shape in begun["outputs"]]
        paths = [folder / KEYS, *(_outputs(folder, i) for i in range(len(sizes)))]
        if all(path.exists() for path in paths):
            self.rows = min(path.stat().st_size // n for path, n in zip(paths, [8, *sizes], strict=True))
            for path, nbytes in zip(paths, [8, *sizes], strict=True):
                os.truncate(path, self.rows * nbytes)

    def add(self, predict: Callable[[Inputs], Outputs], x: Inputs, known: Keys, files: ExitStack) -> None:
        """The rows of one batch that are not there yet."""
        keys = row_keys(x)
        new = ~np.isin(keys, known)
        if not new.any():
            return
        if not self.about["outputs"]:  # two rows tell how large the outputs of a batch will be
            self._begin(arrays(predict(rows(x, 0, 2))))
        with held(self._row_nbytes() * count(x), "a teacher's outputs"):
            made = {n: np.ascontiguousarray(p, dtype=np.float32) for n, p in arrays(predict(x)).items()}
            if not self.files:
                self._open(len(made), files)
            shapes = [[name, list(part.shape[1:])] for name, part in made.items()]
            if shapes != self.about["outputs"]:
                raise InvalidInput(f"The teacher's outputs change shape from {self.about['outputs']} to {shapes}.")
            parts: list[Array] = [*made.values(), keys]
            for file, part in zip(self.files, parts, strict=True):
                # write(), not tofile(): only the former reports a full disk with its number.
                file.write(part[new].data)
                file.flush()
        self.rows += int(new.sum())

    def _row_nbytes(self) -> int:
        return sum(4 * int(np.prod(shape)) for _, shape in self.about["outputs"])

    def _begin(self, made: dict[str, Array]) -> None:
        self.about["outputs"] = [[name, list(part.shape[1:])] for name, part in made.items()]
        (self.folder / BEGUN).write_text(json.dumps(self.about))

    def _open(self, outputs: int, files: ExitStack) -> None:
        paths = [*(_outputs(self.folder, i) for i in range(outputs)), self.folder / KEYS]
        self.files = [files.enter_context(path.open("ab" if self.rows else "wb")) for path in paths]


def _outputs(folder: Path, number: int) -> Path:
    return folder / f"outputs{number}.f32"


def fingerprint(arrays_in_order: Iterable[Array]) -> str:
    """Changes when any weight of a model changes."""
    digest = hashlib.blake2b(digest_size=16)
    for values in arrays_in_order:
        digest.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
