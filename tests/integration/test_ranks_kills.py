"""Ranks, agents and nodes killed at random, twenty times; and one of two hosts cut off in the middle of an epoch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.noted_job import ROWS, noted, rows_once

ROOT = Path(__file__).parents[2]
KILLS = 20

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def environment() -> dict[str, str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    return {**env, "GLOO_SOCKET_IFNAME": "lo"}


def test_twenty_kills_of_ranks_agents_and_nodes_lose_no_row_and_repeat_only_what_was_not_saved(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tests.integration.rank_kills", str(tmp_path), str(KILLS)]
    done = subprocess.run(argv, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert sum(found["killed"].values()) == KILLS and set(found["killed"]) == {"rank", "agent", "node"}
    assert found["each_once"] and found["rows"] == found["of"]
    assert found["worlds"] == ["1", "2"]  # while a node was gone, the other went on alone
    assert 0 < found["steps_again"] <= 4 * KILLS  # saved every third step, and a save may be on its way


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("nsenter") is None, reason="network namespaces need root")
def test_a_host_that_is_cut_off_is_gone_on_without(tmp_path: Path) -> None:
    isolated = ["unshare", "-n", "-p", "-f", "--mount-proc", "--kill-child"]
    argv = [*isolated, sys.executable, "-m", "tests.integration.two_hosts", str(tmp_path)]
    env = {**environment(), "PENSTOCK_RANKS_TIMEOUT_S": "15"}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    rows, again = rows_once(tmp_path)
    worlds = {start.rpartition(":")[2] for _, start, _, _ in noted(tmp_path)}
    assert worlds == {"2", "1"}
    assert rows == Counter(range(ROWS))
    assert 0 <= again <= 4
