"""Three plain scripts and the same scripts on penstock: every epoch, the first included, and the peak of memory.

Covers: `python -m benchmarks.migrations [--rounds 3] [--scripts torch keras jax]`: examples/migrate, before and after
by turns, each in a fresh process and a memory group of its own; 1,200 pictures, and 300,000 rows of CSV.
Does not cover: what changes in the scripts (docs/feeds.md).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import first_minute, report
from penstock.memory.jail import run_limited
from penstock.memory.library_env import without_settings

HOME = Path(__file__).resolve().parents[1]
SCRIPTS = {"torch": first_minute.pictures, "keras": first_minute.pictures, "jax": first_minute.rows}
EPOCHS, ROUNDS = 3, 3
ROOMY = "20GB"
NAME = "migrations"
COLUMNS = ("script", "", "first epoch, s", "later epochs, s", "whole process, s", "peak MB", "measured")


def run_script(script: str, which: str, data: Path) -> dict[str, Any]:
    """One process: seconds of each epoch, of the whole, and the peak of all its processes together."""
    argv = [sys.executable, str(HOME / "examples" / "migrate" / script / f"{which}.py"), str(data), str(EPOCHS)]
    # A plain script knows nothing of what `import penstock` sets here.
    env = {
        **without_settings(os.environ),
        "PYTHONPATH": str(HOME),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "KERAS_BACKEND": "tensorflow",
    }
    began = time.perf_counter()
    done = run_limited(argv, ROOMY, env=env, capture=True)
    whole_s = time.perf_counter() - began
    epochs = [float(seconds) for seconds in re.findall(r"^epoch .*, ([\d.]+) s$", done.stdout or "", re.MULTILINE)]
    if done.returncode or len(epochs) != EPOCHS:
        raise RuntimeError(f"{script}/{which}.py: {(done.stderr or '')[-2000:]}")
    return {"epochs_s": epochs, "whole_s": whole_s, "peak_mb": done.peak_nbytes / 1e6}


def measure(scripts: list[str], rounds: int, quick: bool) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """All rounds; who goes first changes from round to round."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {name: {"before": [], "after": []} for name in scripts}
    data = {name: SCRIPTS[name](quick) for name in scripts}
    for turn in range(rounds):
        for script in scripts:
            for which in ("before", "after") if turn % 2 == 0 else ("after", "before"):
                one = run_script(script, which, data[script])
                found[script][which].append(one)
                print(f"  {script} {which}: {one}", flush=True)
    return found


def _middle(rounds: list[dict[str, Any]], what: str) -> float:
    values = {
        "first": [one["epochs_s"][0] for one in rounds],
        "later": [statistics.median(one["epochs_s"][1:]) for one in rounds],
        "whole": [one["whole_s"] for one in rounds],
        "peak": [one["peak_mb"] for one in rounds],
    }[what]
    return float(statistics.median(values))


def write(found: dict[str, dict[str, list[dict[str, Any]]]], quick: bool) -> None:
    """The page, its numbers and its verdicts; scripts that were not measured now stay as they were."""
    where = report.machine()
    path = report.folder_for(quick) / f"{NAME}.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    measured, found = list(found), {**before.get("scripts", {}), **found}
    earlier = before.get("machine", where)["date"]
    dates = {**dict.fromkeys(before.get("scripts", {}), earlier), **before.get("dates", {})}
    dates |= dict.fromkeys(measured, where["date"])
    rows, verdicts = [], []
    for script, sides in found.items():
        for which, rounds in sides.items():
            first, later, whole = (f"{_middle(rounds, what):.2f}" for what in ("first", "later", "whole"))
            rows.append([script, which, first, later, whole, f"{_middle(rounds, 'peak'):,.0f}", dates[script]])
        for what, unit, target in (
            ("first", "s", "the first epoch no slower"), ("later", "s", "later epochs no slower"),
            ("peak", "MB", "peak no higher"),
        ):  # fmt: skip
            ours, theirs = (_middle(sides[which], what) for which in ("after", "before"))
            told = f"{ours:,.2f} {unit} against {theirs:,.2f} {unit} ({ours / theirs:.2f}x)"
            verdicts.append(report.Verdict(f"{script}: {target} than the plain script", told, ours <= theirs))
    about = (
        "`examples/migrate`: torch is a `DataLoader` with two workers over OpenCV with flips, keras "
        "`image_dataset_from_directory` in bfloat16 on TensorFlow, jax a CSV that pandas reads and optax. 1,200 JPEG "
        f"pictures; 300,000 rows of 20 numbers. {EPOCHS} epochs in fresh processes, before and after by turns, medians "
        "over rounds; peak of all processes of a script together, files that the kernel can drop not counted. For jax "
        "the first epoch has the reading of the table in it, on both sides."
    )
    paper = report.Paper(NAME, "Three scripts, before and after", about, where, COLUMNS, rows, verdicts,
                         {"scripts": found, "dates": dates}, {}, quick)  # fmt: skip
    paper.write()
    plt = report.plotter()
    figure, axes = plt.subplots(1, 3, figsize=(10, 2.6))
    for axis, what, unit in zip(axes, ("first", "later", "peak"), ("s", "s", "MB"), strict=True):
        for place, which in enumerate(("before", "after")):
            heights = [_middle(sides[which], what) for sides in found.values()]
            axis.bar([n + 0.4 * place for n in range(len(found))], heights, 0.4, label=which)
        axis.set_xticks([n + 0.2 for n in range(len(found))], list(found))
        axis.set_title({"first": "first epoch", "later": "later epochs", "peak": "peak of memory"}[what] + f", {unit}")
    axes[0].legend()
    report.save(figure, NAME, quick)


def run(options: Any) -> None:
    """All three."""
    write(measure(list(SCRIPTS), options.turns(ROUNDS), options.quick), options.quick)


def main() -> None:
    """Some of them; the others keep what was measured before."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.migrations")
    parser.add_argument("--scripts", nargs="*", default=list(SCRIPTS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true")
    told = parser.parse_args()
    write(measure(told.scripts, told.rounds, told.quick), told.quick)


if __name__ == "__main__":
    main()
