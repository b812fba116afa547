"""Damage for the fuzz tests: how inputs are mutated, how many, and a child process to read them in.

PENSTOCK_FUZZ sets the number of inputs of each format (10,000 unless told): PENSTOCK_FUZZ=1000000 runs for hours.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from penstock.core.errors import PenstockError

ROUNDS = int(os.environ.get("PENSTOCK_FUZZ", "10000"))

TIMEOUT_S = max(1200, ROUNDS // 5)
"""For one test: 10,000 inputs take up to half a minute of a core, and a machine may be slow and busy."""

TOGETHER = 100
"""Files of one dataset, where a reader takes several: making a reader costs more than reading such a file."""

GROWTH = 400_000_000
"""Bytes by which a process may grow: compiled code, Arrow's pool and one block."""

LEAK = "leaked: "
"""How an outcome begins that must not be: an error that is not ours, or that does not say where."""

HOSTILE = (b"\xff" * 4, b"\x00" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x00\x00\xea\x60", b"\x80" * 9)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Cut short, bits flipped, bytes put in, taken out, doubled, or replaced by hostile numbers."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5))):
        if not out:
            break
        at, way = chance.randrange(len(out)), chance.randrange(8)
        if way == 0:
            del out[at:]
        elif way == 1:
            del out[at : at + chance.randrange(1, 20)]
        elif way == 2:
            out[at:at] = out[at : at + 40]
        elif way == 3:
            worst = chance.choice(HOSTILE)
            out[at : at + len(worst)] = worst
        elif way == 4:
            out[at] = chance.randrange(256)
        else:
            out[at] ^= 1 << chance.randrange(8)
    return bytes(out)


def start_peak() -> int:
    """The memory now, from where on `peak` counts: what tests before it in this process took does not matter."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return peak()


def peak() -> int:
    """The most memory that the process had, pages of files included."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))


def read_all(source: Any) -> int:
    """Rows of a source; of one that claims a great many, the first."""
    if hasattr(source, "fetch"):
        return len(source.decode(source.fetch(np.arange(min(source.num_rows(), 1000)))))
    return sum(len(block) for unit in range(min(source.num_units(), 20)) for block in source.open(unit))


def read_together(folder: Path, inputs: Iterator[bytes], suffix: str, make: Callable[[str], Any]) -> tuple[int, int]:
    """Write some inputs as the files of one dataset and read all of it: its rows, and what was skipped."""
    folder.mkdir()
    for number, data in enumerate(inputs):
        (folder / f"{number}{suffix}").write_bytes(data)
    source = make(str(folder))
    if hasattr(source, "fetch"):
        rows = len(source.decode(source.fetch(np.arange(source.num_rows()))))
    else:
        rows = sum(len(block) for unit in range(source.num_units()) for block in source.open(unit))
    shutil.rmtree(folder)
    return rows, source.on_error.count


def outcome(read: Callable[[], int], where: str) -> str:
    """What came of reading: 'rows', or the name of an error of ours that names the input."""
    try:
        read()
    except PenstockError as error:
        return type(error).__name__ if where in str(error) else f"{LEAK}without a name: {type(error).__name__}: {error}"
    except Exception as error:
        return f"{LEAK}{type(error).__name__}: {error}"[:120]
    return "rows"


def in_child(file: str, *arguments: str, timeout_s: float = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """Run a fuzz test's file as a program: what crashes there is seen, and survived."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", file, *arguments],
        capture_output=True, text=True, timeout=timeout_s, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(file), *filter(None, sys.path)])},
    )  # fmt: skip
