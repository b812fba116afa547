"""What `penstock shrink --data` and `--held-out` name.

Covers: .npz files, folders of .npy files (mapped, so larger than memory is fine), functions of Python files, rows kept
back for judging.
Does not cover: the options themselves (shrink.py), pictures and tables (shrink_read.py).
"""

from __future__ import annotations

import dataclasses
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.cli.shrink.read import DataOpener
from penstock.compress.child.spill import Spilled, tree
from penstock.compress.data import Array, Batches, Inputs, Pair, arrays, count, nbytes, rows
from penstock.compress.files import call_function
from penstock.compress.leases import held
from penstock.core.errors import BadData, InvalidInput, NotFound
from penstock.memory.budget import Lease
from penstock.order.split import Rule, Side
from penstock.sources.storage import files as storage
from penstock.train.recipe import DataRecipe


@dataclass(frozen=True)
class Sides:
    """Batches to train on and batches to judge by; `kept` says where the latter come from if they were not named."""

    data: Batches | None
    held_out: Batches | None
    kept: str = ""
    recipe: DataRecipe | None = None
    """How raw data becomes the model's input, where that is known."""


def open_sides(model: str, data: str | None, held_out: str | None, *, batch: int, val: float) -> Sides:
    """What the two options name. Without --held-out, a share `val` of the data is kept back for judging."""
    if not 0 <= val <= 0.9:
        raise InvalidInput(f"--val is the share of rows kept back for judging, 0 to 0.9, not {val}.")
    reader = DataOpener(model, batch)
    sides = _opened(reader, data, held_out, val)
    return dataclasses.replace(sides, recipe=reader.recipe())


def _opened(reader: DataOpener, data: str | None, held_out: str | None, val: float) -> Sides:
    if data is None or held_out is not None or val == 0:
        return Sides(_open(data, reader), _open(held_out, reader))
    found = _own(data, reader.batch)
    if found is None:
        return Sides(*reader.halves(data, val))
    if not isinstance(found, ArrayBatches):  # a function's rows may come in another order each time
        return Sides(found, None)
    told = f"{val:.0%} of {data}, not trained on here (--val); the model may have seen them before"
    return Sides(found.side("train", val), found.side("val", val), told)


class ArrayBatches:
    """Rows of arrays as batches, a fresh pass each time. `lease` is held as long as the arrays are."""

    def __init__(self, x: Inputs, y: Inputs, size: int, lease: Lease | None = None) -> None:
        self.x, self.y, self.size, self._lease = x, y, size, lease

    def __iter__(self) -> Iterator[Pair]:
        for start in range(0, count(self.y), self.size):
            yield rows(self.x, start, start + self.size), rows(self.y, start, start + self.size)

    def side(self, side: Side, val: float) -> Batches:
        """The rows that are kept back, or all others."""
        rule = Rule.of(val)
        total = count(self.y)
        if not rule.count(total, "val") or not rule.count(total, "train"):
            raise InvalidInput(f"Too few rows ({total}) to keep {val:.0%} of them back: name --held-out.")
        return _Picked(self, rule, side)

    def __del__(self) -> None:
        if self._lease is not None and not self._lease.closed:
            self._lease.close()


class _Picked:
    """One side of rows; a batch is copied out of the arrays, on a lease."""

    def __init__(self, whole: ArrayBatches, rule: Rule, side: Side) -> None:
        self.whole, self.rule, self.side = whole, rule, side

    def __iter__(self) -> Iterator[Pair]:
        x, y, size = self.whole.x, self.whole.y, self.whole.size
        total = count(y)
        most = self.rule.count(total, self.side)
        row_nbytes = -(-(nbytes(x) + nbytes(y)) // total)
        for start in range(0, most, size):
            numbers = self.rule.rows(np.arange(start, min(start + size, most)), total, self.side)
            with held(row_nbytes * len(numbers), "a batch of rows"):
                yield _taken(x, numbers), _taken(y, numbers)


def _taken(x: Inputs, numbers: Array) -> Inputs:
    parts = {name: part[numbers] for name, part in arrays(x).items()}
    return parts if isinstance(x, dict) else tuple(parts.values()) if isinstance(x, tuple) else parts[""]


def _open(text: str | None, reader: DataOpener) -> Batches | None:
    if text is None:
        return None
    found = _own(text, reader.batch)
    return found if found is not None else reader.whole(text)


def _own(text: str, size: int) -> Batches | None:
    """Batches of the forms that belong to this command; None for what the readers know."""
    name, colon, function = text.rpartition(":")
    if colon and name.endswith(".py"):
        return call_function(Path(name), function)  # type: ignore[no-any-return]
    path = Path(text)
    if "://" in text or storage.is_remote(text):
        return None
    if not path.exists():
        raise NotFound(f"There is no data at {path}.")
    if path.suffix == ".npz":
        return _archive(path, size)
    if not path.is_dir():
        return None
    if any(path.glob("*.npz")):
        return Spilled(path)
    found = {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in sorted(path.glob("*.npy"))}
    return _rows(found, path, size, None) if found else None


def _archive(path: Path, size: int) -> ArrayBatches:
    """An .npz file is read whole, so its bytes are leased first; what is too large for that belongs in .npy files."""
    try:
        with zipfile.ZipFile(path) as packed:
            total = sum(entry.file_size for entry in packed.infolist())
        lease = held(total, f"{path.name} (arrays in a folder of .npy files are mapped instead)")
        with np.load(path, allow_pickle=False) as stored:
            found = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise BadData(str(path), f"not an .npz file with x and y: {error}") from error
    return _rows(found, path, size, lease)


def _rows(found: dict[str, Array], path: Path, size: int, lease: Lease | None) -> ArrayBatches:
    sides: dict[str, Any] = {side: tree(found, side) for side in ("x", "y")}
    missing = [side for side, given in sides.items() if isinstance(given, (tuple, dict)) and not given]
    if missing:
        raise BadData(
            str(path),
            f"holds {sorted(found)} but no {' and no '.join(missing)}; several inputs are x.name, or x.#0 x.#1",
        )
    return ArrayBatches(sides["x"], sides["y"], size, lease)
