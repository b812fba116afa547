"""Supervised jobs in which one process, chosen by chance, is killed at a moment chosen by chance.

`python -m tests.integration.doctor_kills --kills 200 --seed 1` counts hangs, orphans, missing or stale evidence, by the
victim; the counts stand in doctor_kills.json. Victims are the supervisor, the shepherd, the script, one of its
children, and a grandchild that left the session.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from penstock.core.errors import NotFound
from penstock.doctor.evidence.read import read_evidence
from penstock.doctor.verdict.verdict import judge_evidence

COUNTS = Path(__file__).with_name("doctor_kills.json")
HANG_S = 30.0
LAST_S = 1.0
"""Evidence must reach so close to the moment of the kill."""
JOB = """
import os, signal, subprocess, time
child = subprocess.Popen(["sleep", "300"])
if os.fork() == 0:
    os.setsid()
    kept = bytearray(b"x") * 3_000_000
    time.sleep(300)
kept = []
while child.poll() is None:
    kept.append(bytearray(b"x") * 200_000)
    time.sleep(0.02)
raise SystemExit(5)
"""


@dataclass(frozen=True)
class Outcome:
    """One kill: who was the victim, how old the last sample was, and what went wrong (nothing: empty)."""

    victim: str
    age_s: float
    wrong: str


def processes_of(folder: Path) -> list[psutil.Process]:
    """Processes of a run, found by the folder in their environment; zombies are none."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("PENSTOCK_RUN_FOLDER") == str(folder):
                found.append(process)
    return found


def kill_one(folder: Path, chance: random.Random) -> Outcome:
    """Start a job, kill one process of its tree, and look at what is left."""
    out = folder / "out"
    command = [sys.executable, "-m", "penstock", "run", "--memory", "300MB", "--out", str(out), "--"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    supervisor = subprocess.Popen([*command, sys.executable, "-c", JOB], **quiet)  # type: ignore[call-overload]
    _wait_for(out / "run.json")
    time.sleep(chance.uniform(0.0, 1.5))
    tree = [psutil.Process(supervisor.pid), *psutil.Process(supervisor.pid).children(recursive=True)]
    chosen = chance.choice(tree)
    victim = _role(chosen, tree)
    killed_at = time.time()
    with contextlib.suppress(psutil.NoSuchProcess):
        chosen.kill()
    wrong = ""
    try:
        if victim == "grandchild":  # nobody waits for it: the job goes on until it is asked to stop
            time.sleep(0.1)
            supervisor.send_signal(signal.SIGTERM)
        supervisor.wait(HANG_S)
    except subprocess.TimeoutExpired:
        wrong = "the supervisor hangs"
        supervisor.kill()
        supervisor.wait()
    if not _ended(out):
        wrong = wrong or "orphans are left"
        for process in processes_of(out):
            process.kill()
    age_s, unread = _age(out, killed_at)
    return Outcome(victim, age_s, wrong or unread)


def _wait_for(path: Path) -> None:
    end_s = time.monotonic() + HANG_S
    while not path.exists() and time.monotonic() < end_s:
        time.sleep(0.01)


def _role(process: psutil.Process, tree: list[psutil.Process]) -> str:
    place = tree.index(process)
    if place == 0:
        return "supervisor"
    with contextlib.suppress(psutil.Error):
        words = " ".join(process.cmdline())
        if "shepherd.py" in words:
            return "shepherd"
        if words.startswith("sleep"):
            return "child"
        parent = process.parent()
        if parent is not None and "shepherd.py" in " ".join(parent.cmdline()):
            return "script"
    return "grandchild"


def _ended(out: Path) -> bool:
    end_s = time.monotonic() + HANG_S
    while time.monotonic() < end_s:
        if not processes_of(out):
            return True
        time.sleep(0.05)
    return False


def _age(out: Path, killed_at: float) -> tuple[float, str]:
    """Seconds from the last sample before the kill to the kill, and what is wrong with the evidence."""
    try:
        evidence = read_evidence(out)
    except NotFound:
        return 0.0, "there is no evidence"
    before = [sample["t"] for sample in evidence.samples if sample["t"] <= killed_at]
    started = evidence.run["start"]
    age_s = killed_at - (before[-1] if before else started)
    if age_s > LAST_S:
        return age_s, f"the last sample is {age_s:.2f} s old"
    if not judge_evidence(evidence).ending.kind:
        return age_s, "there is no verdict"
    return age_s, ""


def kills(count: int, seed: int) -> Iterator[Outcome]:
    """So many kills, one after the other."""
    chance = random.Random(seed)
    for _ in range(count):
        with tempfile.TemporaryDirectory() as folder:
            yield kill_one(Path(folder), chance)


def summary(outcomes: list[Outcome], seed: int) -> dict[str, object]:
    victims = collections.Counter(outcome.victim for outcome in outcomes)
    wrong = collections.Counter(outcome.wrong for outcome in outcomes if outcome.wrong)
    return {
        "kills": len(outcomes),
        "seed": seed,
        "victims": dict(sorted(victims.items())),
        "wrong": dict(wrong),
        "oldest_last_sample_s": round(max(outcome.age_s for outcome in outcomes), 3),
        "processors": os.cpu_count(),
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    for outcome in kills(options.kills, options.seed):
        outcomes.append(outcome)
        print(len(outcomes), outcome, flush=True)
    found = summary(outcomes, options.seed)
    if options.kills >= 200:
        COUNTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
