"""How fast commands answer: help, wrong options, wrong paths, and what `import penstock` takes.

Covers: `python -m benchmarks.answers [--rounds 5]`: the wall clock of fresh processes, commands by turns; the memory
that `import penstock` adds to a bare interpreter.
Does not cover: commands that do their work (first_minute.py).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import report

NAME = "answers"
HOME = Path(__file__).resolve().parents[1]
ROUNDS = 5
TARGET_S, IMPORT_S, IMPORT_MB = 0.5, 0.3, 60.0
COMMANDS: dict[str, tuple[str, int]] = {
    "--version": ("--version", 0),
    "--help": ("--help", 0),
    "train --help": ("train --help", 0),
    "an unknown command": ("trian", 2),
    "an unknown option": ("train t.csv --bogus", 2),
    "a path that is not there": ("train missing.csv", 1),
    "a size without a unit": ("train t.csv --memory 2", 2),
    "a limit that is too small": ("train t.csv --memory 20MB", 2),
    "an unknown backend": ("train t.csv --backend foo", 2),
    "plan: a file that is not there": ("plan missing.py:build", 1),
    "predict: no model": ("predict run t.csv --out p.csv", 1),
    "bench: a path that is not there": ("bench missing.csv", 1),
}
"""What is asked, and the exit code that shows that it was understood."""
IMPORT = "import penstock"
_PEAK = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"


def answered(words: str, code: int, folder: Path) -> float:
    """Seconds until one command has ended as it should."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *words.split()], cwd=folder, env=_env(), capture_output=True, check=False
    )
    seconds = time.perf_counter() - began
    if done.returncode != code:
        raise RuntimeError(f"penstock {words} ended with {done.returncode}: {done.stderr[-500:]!r}")
    return seconds


def imported() -> tuple[float, float]:
    """Seconds and MB that `import penstock` adds to an interpreter that does nothing."""
    took = []
    for line in ("pass", IMPORT):
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", f"{line}\n{_PEAK}"], env=_env(), capture_output=True, check=True)
        took.append((time.perf_counter() - began, int(done.stdout) * 1024 / 1e6))
    return took[1][0] - took[0][0], took[1][1] - took[0][1]


def _env() -> dict[str, str]:
    env = {**os.environ, "PYTHONPATH": str(HOME)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env


def measure(rounds: int) -> dict[str, Any]:
    """All commands by turns; the first round, which may compile bytecode, does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    imports: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "t.csv").write_text("a,b,label\n" + "1.5,2.5,0\n3.5,4.5,1\n" * 100)
        for turn in range(rounds + 1):
            for what, (words, code) in COMMANDS.items():
                took = answered(words, code, folder)
                if turn:
                    seconds[what].append(took)
            imports += [imported()] if turn else []
    return {"seconds": seconds, "imports": imports}


def write(found: dict[str, Any], quick: bool) -> None:
    """The page, its numbers and its verdicts."""
    rows, verdicts = [], []
    for what, took in found["seconds"].items():
        middle = statistics.median(took)
        rows.append([f"penstock {COMMANDS[what][0]}", what, f"{middle:.2f}", f"{min(took):.2f}-{max(took):.2f}"])
        verdicts.append(report.Verdict(f"{what}: within {TARGET_S} s", f"{middle:.2f} s", middle <= TARGET_S))
    seconds = statistics.median(one[0] for one in found["imports"])
    nbytes = statistics.median(one[1] for one in found["imports"])
    rows.append([IMPORT, f"beside a bare interpreter, {nbytes:.0f} MB", f"{seconds:.2f}", ""])
    verdicts += [
        report.Verdict(f"{IMPORT} within {IMPORT_S} s", f"{seconds:.2f} s", seconds <= IMPORT_S),
        report.Verdict(f"{IMPORT} within {IMPORT_MB:.0f} MB", f"{nbytes:.0f} MB", nbytes <= IMPORT_MB),
    ]
    about = (
        "From the start of a fresh process to its end, on the wall clock; medians over rounds, commands by turns, "
        "bytecode compiled before. Each must end with the exit code of its mistake."
    )
    columns = ("command", "", "seconds", "min-max")
    report.Paper(NAME, "How fast commands answer", about, report.machine(), columns, rows, verdicts, found, {},
                 quick, plot=False).write()  # fmt: skip


def run(options: Any) -> None:
    """All commands."""
    write(measure(options.turns(ROUNDS)), options.quick)


def main() -> None:
    """The same, alone."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.answers")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true")
    told = parser.parse_args()
    write(measure(told.rounds), told.quick)


if __name__ == "__main__":
    main()
