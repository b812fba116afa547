"""Mutated CSV, Parquet and NumPy files: rows, a counted skip or an error that names the file; never a crash.

They are read in a child process: damage in a Parquet footer makes C++ libraries end the process.
"""

from __future__ import annotations

import io
import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from mutations import GROWTH, LEAK, ROUNDS, TIMEOUT_S, in_child, mutated, outcome, peak, read_all, start_peak

import penstock as ps

ROWS = 12


def good(kind: str) -> list[bytes]:
    if kind == "csv":
        lines = [f"{i * 0.5},{i},w{i},{i % 2}" for i in range(ROWS)]
        quoted = [f'{i * 0.5},{i},"a ""b"", c",{i % 2}' for i in range(ROWS)]
        return ["\n".join(["a,b,t,y", *body, ""]).encode() for body in (lines, quoted)]
    out, more = io.BytesIO(), io.BytesIO()
    if kind == "npy":
        np.save(out, np.arange(ROWS * 4.0).reshape(ROWS, 4))
        np.savez(more, x=np.arange(ROWS * 4.0).reshape(ROWS, 4), y=np.arange(ROWS))
    else:
        table = pa.table(
            {"a": np.arange(ROWS * 0.5, step=0.5), "t": [f"w{i}" for i in range(ROWS)], "y": np.arange(ROWS)}
        )
        pq.write_table(table, out, row_group_size=6)
        pq.write_table(table, more, row_group_size=6, compression="zstd", use_dictionary=False)
    return [out.getvalue(), more.getvalue()]


def read(kind: str, path: str, number: int) -> int:
    how: Any = "skip" if number % 2 else "raise"
    if kind == "npy":
        return read_all(ps.read_numpy(path).node.step.source)
    if kind == "parquet":
        return read_all(ps.read_parquet(path, on_error=how).node.step.source)
    return read_all(ps.read_csv(path, on_error=how).node.step.source)


def main(kind: str, folder: str, first: int, count: int) -> None:
    """The child: read mutations; the number of the one at hand stands in a file, in case it is the last."""
    whole, seen = good(kind), dict[str, int]()
    for number, data in enumerate(whole):
        path = f"{folder}/good{number}.{'npz' if data[:2] == b'PK' else kind}"
        Path(path).write_bytes(data)
        assert read(kind, path, 0) == ROWS
    before = start_peak()
    for number in range(first, count):
        chance = random.Random(number)
        data = mutated(chance.choice(whole), chance)
        path = f"{folder}/{number}.{'npz' if data[:2] == b'PK' else kind}"
        Path(path).write_bytes(data)
        Path(f"{folder}/at").write_text(str(number))
        told = outcome(lambda: read(kind, path, number), path)
        seen[told] = seen.get(told, 0) + 1
        os.unlink(path)
    leaked = [told for told in seen if told.startswith(LEAK)]
    assert not leaked, "\n".join(leaked[:30])
    assert seen["rows"] > count // 50 and sum(seen.values()) - seen["rows"] > count // 50, seen
    assert peak() - before < GROWTH


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("kind", ["csv", "parquet", "npy"])
def test_mutated_files_are_read_skipped_or_refused(tmp_path: Path, kind: str) -> None:
    done = in_child(__file__, kind, str(tmp_path), "0", str(ROUNDS))
    at = (tmp_path / "at").read_text() if (tmp_path / "at").exists() else "?"
    assert done.returncode == 0, f"rc {done.returncode} at mutation {at}\n{done.stdout}\n{done.stderr[-3000:]}"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
