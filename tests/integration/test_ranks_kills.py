"""Ranks and their launcher killed at random, twenty times; and one of two hosts cut off in the middle of an epoch."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.noted_job import ROWS, noted, rows_once

ROOT = Path(__file__).parents[2]
KILLS = 20
JOB = "tests.integration.noted_job"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def environment() -> dict[str, str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    return {**env, "GLOO_SOCKET_IFNAME": "lo"}


def launcher(folder: Path) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "20"]
    argv += ["--monitor-interval", "0.1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    argv += ["--local-addr", "127.0.0.1", "-m", JOB, str(folder)]
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(argv, cwd=ROOT, env=environment(), stdout=log, stderr=log)


def test_twenty_kills_of_ranks_and_launchers_lose_no_row_and_repeat_only_what_was_not_saved(tmp_path: Path) -> None:
    draw = random.Random(5)
    agent = launcher(tmp_path)
    killed: Counter[str] = Counter()
    try:
        while sum(killed.values()) < KILLS:
            before, more = len(noted(tmp_path)), draw.randint(2, 12)
            while len(noted(tmp_path)) < before + more:
                assert agent.poll() is None, (tmp_path / "log.txt").read_text()[-3000:]
                time.sleep(0.05)
            who = draw.choice(["rank 0", "rank 1", "launcher"])
            victim = agent.pid if who == "launcher" else int((tmp_path / f"pid-{who[-1]}").read_text())
            os.kill(victim, signal.SIGKILL)
            killed[who] += 1
            if who == "launcher":
                agent.wait()
                agent = launcher(tmp_path)
        assert agent.wait(300) == 0, (tmp_path / "log.txt").read_text()[-3000:]
    finally:
        agent.kill()
    rows, again = rows_once(tmp_path)
    print(f"killed: {dict(killed)}, steps taken again: {again}")
    assert len(killed) == 3
    assert rows == Counter(range(ROWS))
    assert 0 < again <= 4 * KILLS  # saved every third step, and a save may be on its way


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
