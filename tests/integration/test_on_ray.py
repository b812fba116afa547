"""Ray, for real: a cluster of two nodes in a network namespace of its own, in which only loopback exists."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.integration.ray_job import EPOCHS, ROWS

ROOT = Path(__file__).parents[2]
ISOLATED = ["unshare", "-n", "-p", "-f", "--mount-proc", "--kill-child"]
"""Ray listens on whatever address it finds for this host; in here that can only be loopback."""
UP = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: make test-ray"),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="a network namespace needs root"),
]


def run(folder: Path, case: str) -> dict[str, Any]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "RAY_USAGE_STATS_ENABLED": "0"}
    # Ray makes sockets below its folder, whose names may have 107 letters.
    short = Path("/tmp") / f"penstock-ray-{os.getpid()}-{case}"
    env |= {"RAY_TMPDIR": str(short), "RAY_AUTH_TOKEN_PATH": str(short / "token"), "JAX_PLATFORMS": "cpu"}
    short.mkdir()
    argv = [*ISOLATED, *UP, sys.executable, "-m", "tests.integration.ray_job", str(folder), case]
    try:
        done = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True, timeout=600)
    finally:
        shutil.rmtree(short)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found: dict[str, Any] = json.loads(next(line for line in reversed(done.stdout.splitlines()) if line[:1] == "{"))
    return found


EVERY_ROW = sorted(list(range(ROWS)) * EPOCHS)


def test_fit_and_guard_in_a_trainer_resume_at_the_exact_row_after_a_kill(tmp_path: Path) -> None:
    found = run(tmp_path, "trainers")
    fit, guard, jax = found["fit"], found["guard"], found["jax"]
    assert fit["died"] and guard["died"]
    assert fit["rows"] == jax["rows"] == EVERY_ROW
    assert guard["rows"] == list(range(ROWS))
    assert all(0 < again <= 5 for again in fit["again"])  # saved every third step, killed at the eighth
    assert all(again <= 1 for again in guard["again"])  # saved at every step
    for case in (fit, guard, jax):
        assert [rank["world"] for rank in case["done"]] == [2, 2]
        assert case["done"][0]["weights"] == case["done"][1]["weights"]
    assert len(jax["refused"]) == 2 and all("would train 2 separate models" in why for why in jax["refused"])


def test_a_node_that_is_lost_costs_only_what_was_not_saved(tmp_path: Path) -> None:
    found = run(tmp_path, "node")
    assert found["died"] and found["rows"] == EVERY_ROW
    assert [rank["world"] for rank in found["done"]] == [2, 2]
    assert sum(found["again"]) > 0


def test_ray_data_streams_in_and_tasks_write_shards(tmp_path: Path) -> None:
    found = run(tmp_path, "data")
    assert [row for batch in found["seen"] for row in batch] == list(range(3000))
    assert found["rest"] == found["seen"][12:]
    assert found["x"] == [[0, 1, 2], [1, 2, 3]]
    assert found["labelled"] == [[[n, n + 1, n + 2] for n in range(5)], [0, 1, 2, 3, 4]]
    assert "deals out shards as they come" in found["refused"] and "no such thing" in found["failed"]
    assert found["pack"][0] == 0, found["pack"]
    assert Counter(found["packed"]) == Counter(range(5000))
    assert found["parts"] == ["part-00000", "part-00001", "part-00002"]
    assert found["other"][0] != 0 and "holds 3 parts, not 4" in found["other"][1]


def test_the_train_command_goes_on_after_a_kill_and_saves_when_asked_to_stop(tmp_path: Path) -> None:
    found = run(tmp_path, "command")
    calm, torn = found["histories"]
    assert found["jax"][0] == 0, found["jax"][1]
    assert found["torn"][0] == 0, found["torn"][1]
    assert found["attempts"] == 2 and torn.keys() == calm.keys()
    for name, values in calm.items():
        assert torn[name] == pytest.approx(values, rel=1e-4)
    assert found["stopped"][0] == 130 and "Go on with: penstock train --resume" in found["stopped"][1]
    assert found["saved"] > 0
