"""Ranks on one host list a store and fetch its bytes once: they share the folders that keep both."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.integration.s3_gate import Gate, gated

ROWS, FILES = 6_000, 3
RANK = """
import json, sys
import penstock as ps
ds = ps.read_parquet("s3://shared/*.parquet").cache(sys.argv[1], limit="200MB").shuffle(seed=1).batch(100)
print(json.dumps([int(n) for _ in range(2) for batch in ds for n in batch["id"]]))
"""


@pytest.fixture(scope="module")
def gate() -> Iterator[Gate]:
    """Three files of 4 MB each, in groups of 500 rows."""
    with gated() as gate:
        import s3fs

        fs = s3fs.S3FileSystem()
        fs.mkdir("shared")
        rng = np.random.default_rng(0)
        for number in range(FILES):
            ids = np.arange(number, ROWS, FILES)
            noise = pa.array([rng.bytes(2_000) for _ in ids], pa.binary())
            file = io.BytesIO()
            pq.write_table(pa.table({"id": ids, "noise": noise}), file, row_group_size=500, compression="none")
            fs.pipe(f"shared/{number}.parquet", file.getvalue())
        yield gate


@pytest.mark.timeout(600)
def test_two_ranks_fetch_every_byte_once(gate: Gate, tmp_path: Path) -> None:
    import s3fs

    nbytes = sum(s3fs.S3FileSystem().sizes([f"shared/{number}.parquet" for number in range(FILES)]))
    gate.sent_nbytes.clear()
    gate.seen.clear()
    gate.latency_s = 0.01  # ranks ask at the same time
    ranks = [start(tmp_path, rank) for rank in range(2)]
    seen: Counter[int] = Counter()
    for rank in ranks:
        out, errors = rank.communicate(timeout=280)
        assert rank.returncode == 0, errors[-3000:]
        seen.update(json.loads(out.splitlines()[-1]))
    assert seen == Counter(dict.fromkeys(range(ROWS), 2))
    assert len([request for request in gate.seen if "list-type=2" in request]) == 1
    fetched = sum(sent for path, sent in gate.sent_nbytes.items() if path.endswith(".parquet"))
    assert nbytes <= fetched <= nbytes + FILES * 2**20  # a file's last page may be asked for beyond its end


def start(folder: Path, rank: int) -> subprocess.Popen[str]:
    env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    env |= {"PYTHONPATH": str(Path(__file__).parents[2]), "PENSTOCK_CACHE": str(folder / "indexes")}
    argv = [sys.executable, "-c", RANK, str(folder / "kept")]
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
