"""Damaged HDF5 files: a clear error or fewer rows, never a crash, a hang or a huge allocation.

The mutations run in a child process, because a crash or an endless loop inside the HDF5 library could not be seen (nor
survived) from within.
"""

from __future__ import annotations

import random
import resource
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from mutations import ROUNDS, TIMEOUT_S, in_child

from penstock.core.errors import PenstockError
from penstock.read.hdf5 import read_hdf5

UNITS_READ = 20
ROOM = 3_000_000_000


KINDS: dict[str, dict[str, Any]] = {
    "packed": {"chunks": (10, 4), "compression": "gzip", "shuffle": True},
    "chunked": {"chunks": (10, 4)},
    "plain": {},
}


def make(path: Path) -> list[bytes]:
    """A small file with every way of storing rows, and a tiny one for each way."""
    values, made = np.random.default_rng(0).random((60, 4)), []
    with h5py.File(path, "w") as file:
        for name, options in KINDS.items():
            file.create_dataset(name, data=values, **options)
        file.create_dataset("x", data=values)
        file.create_dataset("text", data=[str(i) * i for i in range(60)])
    made.append(path.read_bytes())
    for options in KINDS.values():
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=values[:20], **options)
        made.append(path.read_bytes())
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=[str(i) * i for i in range(20)])
    return [*made, path.read_bytes()]


def mutate(good: bytes, seed: int) -> bytes:
    """Cut short, or with some bits flipped."""
    chance, data = random.Random(seed), bytearray(good)
    if chance.random() < 0.2:
        return bytes(data[: chance.randrange(len(data))])
    for _ in range(chance.choice([1, 1, 2, 8, 32])):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def read_damaged(path: Path, seed: int) -> str:
    """What came of it: the error's name or 'rows'."""
    try:
        if seed % 20 == 0:
            source = read_hdf5(path, on_error="skip").node.step.source
        else:
            source = read_hdf5(path, x="x", on_error="skip" if seed % 2 else "raise").node.step.source
        for unit in range(min(source.num_units(), UNITS_READ)):
            if source.unit_nbytes(unit) < ROOM // 10:  # the engine refuses what its budget cannot hold
                for block in source.open(unit):
                    assert block.nbytes < ROOM // 10
        source.close()
    except PenstockError as error:
        return type(error).__name__ if str(path) in str(error) else f"without a path: {error}"
    return "rows"


def main(path: Path, count: int) -> None:
    """The child: read `count` mutations under an address-space limit."""
    resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))
    good, seen = make(path), {"rows": 0, "BadData": 0}
    for seed in range(count):
        path.write_bytes(mutate(good[0] if seed % 20 == 0 else good[1 + seed % 4], seed))
        outcome = read_damaged(path, seed)
        seen[outcome] = seen.get(outcome, 0) + 1
    assert not [told for told in seen if told.startswith("without")], seen
    assert min(seen["rows"], seen["BadData"]) > count // 20, seen
    sys.stdout.write(f"{seen}\n")


@pytest.mark.timeout(TIMEOUT_S)
def test_damaged_files_are_refused_or_read(tmp_path: Path) -> None:
    done = in_child(__file__, str(tmp_path / "a.h5"), str(ROUNDS))
    assert done.returncode == 0, f"rc {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
