"""Batches kept on disk for child processes.

Covers: writing the first rows of a stream, one batch at a time, and reading them back.
Does not cover: caches of whole datasets (engine/).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from penstock.compress.data import Array, Batches, Inputs, Pair, arrays, count, pairs, rows
from penstock.compress.leases import held
from penstock.core.errors import BadData, InvalidInput


class Spilled:
    """Batches kept on disk, one file each: a re-iterable stream that a child process can open too."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def __len__(self) -> int:
        return len(self._files())

    def __iter__(self) -> Iterator[Pair]:
        for path in self._files():
            # Files are not compressed, so a batch needs as many bytes as its file.
            with held(path.stat().st_size, "a stored batch"):
                try:
                    with np.load(path, allow_pickle=False) as stored:
                        parts = {name: stored[name] for name in stored.files}
                    pair = tree(parts, "x"), tree(parts, "y")
                except (OSError, ValueError, KeyError, IndexError) as error:
                    raise BadData(str(path), f"not a stored batch: {error}") from error
                yield pair

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*.npz"))

    @classmethod
    def write(cls, batches: Batches, folder: str | Path, *, max_rows: int | None = None, what: str = "data") -> Spilled:
        """Copy the first rows of a stream to disk, one batch in memory at a time."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        done = 0
        for number, (x, y) in enumerate(pairs(batches, what)):
            take = count(x) if max_rows is None else min(count(x), max_rows - done)
            if take <= 0:
                break
            # Views of the caller's batch: nothing is copied in memory, so there is nothing to lease.
            named = {**_named(rows(x, 0, take), "x"), **_named(rows(y, 0, take), "y")}
            np.savez(target / f"{number:08d}.npz", **named)  # type: ignore[arg-type]
            done += take
        if not done:
            raise InvalidInput(f"{what} holds no rows.")
        return cls(target)


def _named(tree: Inputs, side: str) -> dict[str, Array]:
    """Arrays under names that tell the form: x for one, x.#0 for the first of several, x.name for a named one."""
    if isinstance(tree, np.ndarray):
        return {side: tree}
    mark = "#" if isinstance(tree, tuple) else ""
    return {f"{side}.{mark}{name}": part for name, part in arrays(tree).items()}


def tree(parts: dict[str, Array], side: str) -> Inputs:
    """Inputs (side 'x') or labels ('y') of arrays that are named as `Spilled` names them."""
    if side in parts:
        return parts[side]
    found = {name[2:]: part for name, part in parts.items() if name.startswith(f"{side}.")}
    if all(name.startswith("#") for name in found):
        return tuple(found[f"#{i}"] for i in range(len(found)))
    return found
