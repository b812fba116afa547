"""This checkout against an earlier one: images, CSV, Parquet and a guarded step, in fresh processes by turns.

    git worktree add --detach /tmp/before COMMIT
    python -m benchmarks.before_after --before /tmp/before [--before-python PYTHON] [--before-imports numba]
        [--rounds 5] [--quick]

Covers: rates of both, and the ratio of each round's pair, which drift of the machine cannot bend.
Does not cover: other libraries (images.py, tables_csv.py and others), shuffling through a row store, which only one of
the two may have: tables are shuffled by windows of 22 MB.

`--before-python` is for a commit that needs packages which this one does not. Where its kernels are Numba's,
`--before-imports numba` loads the compiler first: commits before 481c1e1 lose their kernels where two threads import
it at once, and reading without them is not what this compares. A process of each is run first, for half a minute, and
thrown away: kernels are compiled and files come from memory afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks import data, report

ROOT = Path(__file__).resolve().parent.parent
CASES = ("images", "csv", "parquet", "guard")
SLOWER = 0.02

JOB = """
import importlib, json, sys, time

case, path, tree, imports, warm_s, seconds = *sys.argv[1:5], *map(float, sys.argv[5:])
for name in imports.split():
    importlib.import_module(name)
import penstock as ps

assert ps.__file__.startswith(tree), ps.__file__

if case == "guard":
    import numpy, torch
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    guard = ps.Guard(model, torch.optim.AdamW(model.parameters()))
    batch = numpy.ones((32, 32), "float32"), numpy.zeros(32, "int64")
    loss = torch.nn.CrossEntropyLoss()
    def turns():
        while True:
            guard.step(batch, loss)
            yield 1
else:
    if case == "images":
        ds = ps.read_images(path, size=(224, 224)).shuffle(seed=1).batch(64, drop_last=True)
    else:
        read = ps.read_csv if case == "csv" else ps.read_parquet
        ds = read(f"{path}/*.{case}", label="label").shuffle(seed=1, window="22MB").batch(1024, drop_last=True)
    def turns():
        for x, y in ds.repeat():
            yield len(y)

running = turns()
began = time.perf_counter()
while time.perf_counter() - began < warm_s:
    next(running)
count, began, cpu = 0, time.perf_counter(), time.process_time()
while time.perf_counter() - began < seconds:
    count += next(running)
print(json.dumps({"rate": count / (time.perf_counter() - began), "cpu_us": (time.process_time() - cpu) / count * 1e6}))
"""


@dataclass(frozen=True)
class Side:
    """One of the two checkouts, and the Python that runs it."""

    name: str
    tree: Path
    python: str
    imports: str = ""
    """Packages that are loaded before penstock, separated by spaces."""

    def run(self, case: str, path: Path, warm_s: float, seconds: float) -> dict[str, float]:
        """What one fresh process measures."""
        command = [self.python, "-c", JOB, case, str(path), str(self.tree), self.imports, str(warm_s), str(seconds)]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": str(self.tree)}, cwd=self.tree, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{self.name}, {case}:\n{done.stderr[-3000:]}")
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found


def paths(quick: bool) -> dict[str, Path]:
    """The data of each case; a guarded step needs none."""
    return {
        "images": data.images(64 if quick else 600),
        "csv": data.csv(1, 1) if quick else data.csv(2, 2),
        "parquet": data.parquet(1, 1) if quick else data.parquet(2, 4),
        "guard": ROOT,
    }


Rounds = dict[str, list[dict[str, dict[str, float]]]]
"""By case: the rounds, each what both sides measured."""


def measure(before: Side, after: Side, rounds: int, quick: bool) -> Rounds:
    """Rounds of pairs by case, each a fresh process; who goes first changes."""
    warm_s, seconds = (0.2, 0.3) if quick else (3.0, 3.0)
    where = paths(quick)
    found: Rounds = {case: [] for case in CASES}
    for case in CASES:
        for side in (before, after):
            side.run(case, where[case], 0.0, 0.3 if quick else 30.0 if side.imports else 1.0)
    for number in range(rounds):
        for case in CASES:
            turn = (before, after) if number % 2 else (after, before)
            found[case].append({side.name: side.run(case, where[case], warm_s, seconds) for side in turn})
    return found


def rows_of(found: Rounds) -> tuple[list[list[str]], list[report.Verdict]]:
    """Table rows and verdicts: the median of the rounds' own ratios, and their range."""
    rows, verdicts = [], []
    for case, rounds in found.items():
        ratios = [pair["after"]["rate"] / pair["before"]["rate"] for pair in rounds]
        cpu = [pair["after"]["cpu_us"] / pair["before"]["cpu_us"] for pair in rounds]
        rate = {side: statistics.median(pair[side]["rate"] for pair in rounds) for side in ("before", "after")}
        said = f"{statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"
        rows.append([
            case, f"{rate['before']:,.0f}", f"{rate['after']:,.0f}", said,
            f"{statistics.median(cpu):.3f} ({min(cpu):.3f}-{max(cpu):.3f})",
        ])  # fmt: skip
        reached = statistics.median(ratios) >= 1 - SLOWER
        verdicts.append(report.Verdict(f"{case}: at most {SLOWER:.0%} slower than before", said, reached))
    return rows, verdicts


def commit_of(tree: Path) -> str:
    """The commit of a checkout, shortened."""
    command = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Measure in turns, judge, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.before_after", description="This checkout against an earlier one."
    )
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the earlier commit")
    parser.add_argument("--before-python", default=sys.executable, help="the Python that runs it")
    parser.add_argument("--before-imports", default="", help="packages that it loads first: its compiler")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: only to see that it works")
    asked = parser.parse_args()
    where = report.machine()
    before = Side("before", asked.before.resolve(), asked.before_python, asked.before_imports)
    after = Side("after", ROOT, sys.executable)
    rounds = 1 if asked.quick else asked.rounds
    found = measure(before, after, rounds, asked.quick)
    rows, verdicts = rows_of(found)
    about = (
        f"Commit {commit_of(before.tree)} against {commit_of(ROOT)}, {rounds} rounds of fresh processes by turns. "
        "Rows a second, and steps a second of a guard over a network so small that the guard is most of it; ratios are "
        "of each round's pair."
        + (f" The earlier commit had loaded {asked.before_imports} beforehand." if asked.before_imports else "")
    )
    columns = ["case", "before, a second", "after, a second", "rate, after / before", "processor time, after / before"]
    report.Paper(
        "before_after", "This checkout against an earlier one", about, where, columns, rows, verdicts,
        {"commits": [commit_of(before.tree), commit_of(ROOT)], "rounds": found}, {}, asked.quick, plot=False,
    ).write()  # fmt: skip
    print(report.table(columns, rows))


if __name__ == "__main__":
    main()
