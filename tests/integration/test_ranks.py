"""Several ranks train as one process with all their rows would: real processes on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.distribute.on_torchrun import command
from tests.integration import postgres_server
from tests.integration.ranks_job import MANY_ROWS, ROWS

ROOT = Path(__file__).parents[2]


def run(folder: Path, ranks: int, case: str, backend: str = "torch") -> list[dict[str, Any]]:
    folder.mkdir(exist_ok=True)
    alone = [sys.executable, "-m", "tests.integration.ranks_job"]
    argv = alone if ranks == 1 else command(ranks, "tests.integration.ranks_job")
    env = {**os.environ, "KERAS_BACKEND": backend, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*argv, str(folder), case], env=env, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(ranks)]


LEAVING = """
import os
from penstock.distribute import join
join._join_torch()
import keras, torch
torch.distributed.all_reduce(torch.ones(3))
threads = lambda: [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
before = sum("gloo" in name for name in threads())
join._leave_torch()
print(before > 0, sum("gloo" in name for name in threads()))
"""


def test_no_thread_of_a_group_outlives_it() -> None:
    """What a thread lets go of while the interpreter ends would abort a rank that has done its work."""
    place = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(postgres_server.free_port()),
    }
    env = {**os.environ, **place, "KERAS_BACKEND": "torch", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", LEAVING], env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "True 0\n"), done.stderr[-3000:]


def rows_of(ranks: list[dict[str, Any]]) -> Counter[int]:
    return Counter(n for rank in ranks for n in rank["seen"])


@pytest.mark.parametrize(
    ("backend", "count"), [("torch", 2), ("jax", 2), pytest.param("torch", 4, marks=pytest.mark.slow)]
)
def test_ranks_learn_what_one_process_learns(tmp_path: Path, backend: str, count: int) -> None:
    alone, ranks = run(tmp_path / "1", 1, "plain", backend)[0], run(tmp_path / "n", count, "plain", backend)
    assert ranks[0]["weights"] == pytest.approx(alone["weights"], rel=1e-4, abs=1e-5)
    for name, values in alone["history"].items():
        assert ranks[0]["history"][name] == pytest.approx(values, rel=1e-4, abs=1e-5)
    for rank in ranks[1:]:
        assert (rank["weights"], rank["history"]) == (ranks[0]["weights"], ranks[0]["history"])
    assert rows_of(ranks) == Counter(dict.fromkeys(range(ROWS), 6))  # three epochs of training and of validation


def test_uneven_ranks_see_every_row_and_start_from_the_same_weights(tmp_path: Path) -> None:
    ranks = run(tmp_path / "3", 3, "filter")
    assert len({len(rank["seen"]) for rank in ranks}) > 1
    assert rows_of(ranks) == Counter({n: 6 for n in range(ROWS) if n % 4 != 1 and n % 7 != 2})
    assert ranks[0]["weights"] == ranks[1]["weights"] == ranks[2]["weights"]


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_when_one_rank_runs_out_of_memory_all_take_the_step_again_smaller(tmp_path: Path, backend: str) -> None:
    calm, torn = run(tmp_path / "calm", 2, "plain", backend), run(tmp_path / "torn", 2, "oom", backend)
    assert torn[0]["micros"] and torn[0]["micros"] == torn[1]["micros"]
    assert torn[0]["weights"] == torn[1]["weights"]
    assert torn[0]["weights"] == pytest.approx(calm[0]["weights"], rel=1e-4, abs=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_of_one_process_grows_and_shrinks_and_trains_on_every_row_once(tmp_path: Path) -> None:
    seen: Counter[int] = Counter()
    for ranks, steps in ((1, 3), (2, 4), (4, 5), (3, 6), (2, 20), (4, 1000)):  # the fifth goes on into the second epoch
        seen += rows_of(run(tmp_path / "run", ranks, str(steps)))
    assert seen == Counter(dict.fromkeys(range(MANY_ROWS), 2))
