"""`penstock train --workers 2`, and the death of a rank in the middle of it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.watch.run_folder import rank_folders, read_events


def table(path: Path, rows: int = 1500) -> None:
    draw = random.Random(1)
    with path.open("w") as file:
        file.write("a,b,c,label\n")
        for _ in range(rows):
            a, b, c = (draw.gauss(0, 1) for _ in range(3))
            file.write(f"{a:.4f},{b:.4f},{c:.4f},{int(a + b > 0)}\n")


def start(folder: Path, out: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "penstock", "train", "t.csv", "--backend", "torch", "--workers", "2", "--batch", "64"]
    argv += ["--epochs", "3", "--checkpoint-minutes", "0.01", "--out", out]
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(argv, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def kinds(folder: Path) -> list[str]:
    return [event["kind"] for event in read_events(folder)] if (folder / "events.jsonl").exists() else []


def history(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.json").read_text())["history"]


@pytest.mark.timeout(900)
def test_a_rank_that_is_killed_changes_nothing_in_what_is_learned(tmp_path: Path) -> None:
    table(tmp_path / "t.csv")
    calm = start(tmp_path, "calm")
    assert calm.wait(280) == 0, calm.communicate()[0][-3000:]
    torn = start(tmp_path, "torn")
    ended = time.monotonic() + 280
    while "train.epoch" not in kinds(tmp_path / "torn"):
        assert time.monotonic() < ended and torn.poll() is None, torn.communicate()[0][-3000:]
        time.sleep(0.05)
    second = [event for event in read_events(tmp_path / "torn" / "ranks" / "1") if event["kind"] == "run.start"]
    os.kill(second[-1]["pid"], signal.SIGKILL)
    assert torn.wait(280) == 0, torn.communicate()[0][-3000:]
    assert [path.name for path in rank_folders(tmp_path / "torn")] == ["torn", "1"]
    assert kinds(tmp_path / "torn").count("run.death") == 1
    found, wanted = history(tmp_path / "torn"), history(tmp_path / "calm")
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        assert found[name] == pytest.approx(values, rel=1e-4)
