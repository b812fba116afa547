"""A dataset several times larger than a real memory limit is packed inside that limit."""

from __future__ import annotations

import sys

import pyarrow.parquet as pq
import pytest

from penstock.memory import run_limited

LIMIT = 400_000_000
ROWS, ROW_NBYTES = 2400, 250_000

PACK = f"""
import sys
import numpy as np
import penstock as ps

def wide(n):
    return {{"n": n, "x": np.full({ROW_NBYTES} // 4, n, np.float32)}}

print(ps.from_tensor_slices(np.arange({ROWS})).map(wide).write(sys.argv[1], sys.argv[2], shard_size="200MB"))
"""


@pytest.mark.parametrize("format", ["parquet", "tfrecord"])
def test_packing_holds_the_limit(format, tmp_path):
    # Repeated numbers compress to nothing in Parquet; TFRecord writes them out, so it gets fewer rows.
    script = PACK if format == "parquet" else PACK.replace(f"arange({ROWS})", "arange(1800)")
    outcome = run_limited([sys.executable, "-c", script, str(tmp_path), format], LIMIT, capture=True, timeout_s=100)
    assert not outcome.killed and outcome.returncode == 0, outcome.stderr
    rows = ROWS if format == "parquet" else 1800
    assert f"{rows} rows" in outcome.stdout
    if format == "parquet":
        found = pq.ParquetFile(tmp_path / "shard-000000.parquet")
        assert found.metadata.row_group(0).num_rows * ROW_NBYTES < 20_000_000
        assert found.read_row_group(0)["x"][3].as_py()[0] == 3.0
