"""Scripts that were written before anybody looked at how the detectors see them, and what was first said of them.

`python -m tests.integration.doctor_unseen_table [script ...]` runs those that have no first answer yet and notes it in
doctor_unseen.json. A first answer is never replaced; what is said later stands beside it (`--again`).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.doctor.verdict.verdict import judge
from tests.integration.doctor_table import MB, prepare, run_case

SCRIPTS = [Path(__file__).with_name(room) for room in ("doctor_unseen", "doctor_third")]
ANSWERS = Path(__file__).with_name("doctor_unseen.json")


@dataclass(frozen=True)
class Unseen:
    """A script, the causes of which one must be named first (none: nothing may be claimed), and its limit."""

    script: str
    causes: tuple[str, ...]
    limit: int
    prepare: str = ""

    @property
    def path(self) -> Path:
        """Where the script is."""
        return next(path for room in SCRIPTS for path in room.glob(f"{self.script}.py"))


UNSEEN = [
    Unseen("trainer_eval", ("outputs-kept",), 900 * MB),
    Unseen("lightning_history", ("list-never-cleared",), 750 * MB),
    Unseen("ram_images", ("list-of-images",), 450 * MB, "pictures"),
    Unseen("one_hot_pipeline", ("dense-expansion",), 500 * MB),
    Unseen("cached_pipeline_tf", ("cache-in-memory",), 900 * MB),
    Unseen("kfold_histories", ("models-rebuilt",), 900 * MB),
    Unseen("padded_corpus", ("dense-expansion",), 800 * MB),
    Unseen("average_meter", ("loss-keeps-graph",), 650 * MB),
    Unseen("sliding_windows", ("pieces-joined", "dense-expansion"), 650 * MB),
    Unseen("image_folder_workers", ("copy-on-access",), 600 * MB),
    Unseen("shard_reader", ("unbounded-cache",), 550 * MB),
    Unseen("pool_partial", ("joblib-copies",), 420 * MB),
    Unseen("tiled_inference", ("predict-joins",), 900 * MB),
    Unseen("features_npz", ("whole-array-loaded",), 420 * MB, "archive"),
    Unseen("fetch_all", ("whole-table-loaded",), 250 * MB, "database"),
    Unseen("static_steps_jax", ("retracing",), 320 * MB),
    Unseen("eager_producer", ("prefetch-product",), 700 * MB),
    Unseen("native_leak", (), 600 * MB),
]
AFTERWARDS = [
    Unseen("upload_checkpoint", ("save-peak",), 680 * MB),
    Unseen("lightning_validation", ("outputs-kept",), 800 * MB),
    Unseen("replay_buffer", ("list-never-cleared",), 500 * MB),
    Unseen("carried_hidden", ("loss-keeps-graph",), 600 * MB),
    Unseen("chunked_anyway", ("pieces-joined", "whole-table-loaded"), 300 * MB, "table"),
    Unseen("mapped_then_copied", ("whole-array-loaded",), 200 * MB, "array"),
    Unseen("initialised_pool", ("joblib-copies",), 400 * MB),
    Unseen("snapshot_ensemble", ("list-never-cleared", "models-rebuilt"), 700 * MB),
]
"""Written after the detectors had been changed for those above, by who had changed them."""
THIRD = [
    Unseen("boosted_quantiles", ("gbdt-copies",), 480 * MB),
    Unseen("encode_corpus", ("dense-expansion",), 600 * MB),
    Unseen("monthly_files", ("pieces-joined", "whole-table-loaded"), 350 * MB),
    Unseen("episode_memo", ("unbounded-cache",), 900 * MB),
    Unseen("full_state_each_rank", ("save-peak", "weights-per-rank"), 750 * MB),
    Unseen("metric_without_reset", ("list-never-cleared", "outputs-kept"), 600 * MB),
    Unseen("curves_each_epoch", ("open-figures",), 900 * MB),
    Unseen("parallel_documents", ("joblib-copies",), 420 * MB),
    Unseen("records_sorted", ("allocator-keeps",), 400 * MB),
    Unseen("enqueuers", ("pools-every-epoch",), 300 * MB),
    Unseen("captions_frame", ("copy-on-access",), 700 * MB),
    Unseen("generated_scores", ("outputs-kept", "list-never-cleared"), 800 * MB),
    Unseen("lengths_as_numbers", ("retracing",), 800 * MB),
    Unseen("critic_values", ("loss-keeps-graph", "list-never-cleared"), 600 * MB),
    Unseen("item_embeddings", ("optimizer-state",), 650 * MB),
    Unseen("one_column_per_user", ("dense-expansion",), 500 * MB),
    Unseen("sensor_archive", ("whole-array-loaded",), 400 * MB),
    Unseen("killed_by_hand", (), 300 * MB),
    Unseen("deep_buffer", ("prefetch-product",), 900 * MB),
    Unseen("linked_trees", ("reference-cycles",), 400 * MB),
]
"""Written by somebody who had read the names of the causes, three scripts of those above, and no detector."""


def make_data(what: str, folder: Path) -> None:
    """Make the data that a script reads."""
    if what == "archive":
        rows = np.random.default_rng(0).integers(0, 255, (60_000, 784), dtype=np.uint8)
        np.savez(folder / "features.npz", features=rows, labels=rows[:, 0] % 10)
    elif what == "database":
        import sqlite3

        with sqlite3.connect(folder / "ratings.db") as con:
            con.execute("CREATE TABLE ratings (user INTEGER, item INTEGER, stars REAL, comment TEXT)")
            rows_of = ((n * 7919 % 50_000, n * 31 % 9_000, n % 11 / 2, f"comment number {n}") for n in range(1_000_000))
            con.executemany("INSERT INTO ratings VALUES (?, ?, ?, ?)", rows_of)
    else:
        prepare(what, folder)


def run_to_its_end(unseen: Unseen, folder: Path) -> tuple[int, dict[str, Any]]:
    """Exit code and verdict; of a script that waits for ever for a killed worker the verdict is made afterwards."""
    try:
        code, verdict, _ = run_case(unseen.path, unseen.limit, folder)
    except subprocess.TimeoutExpired:
        return -1, judge(folder / f"run-{unseen.script}.py").as_json()
    return code, verdict


def answer(unseen: Unseen, folder: Path) -> dict[str, Any]:
    """What is said of a script: how it ended, and the first cause with its confidence; empty if it did not die."""
    make_data(unseen.prepare, folder)
    code, verdict = run_to_its_end(unseen, folder)
    if verdict["ending"]["kind"] == "finished" or (unseen.causes and not verdict["ending"]["memory"]):
        return {}
    named = [(cause["name"], cause["confidence"]) for cause in verdict["causes"][:3]]
    first, confidence = named[0] if named else ("", "")
    right = first in unseen.causes if unseen.causes else confidence in ("", "low")
    return {"right": right, "confidence": confidence, "named": [name for name, _ in named], "exit": code}


def note(script: str, when: str, said: dict[str, Any]) -> None:
    """Add an answer to the file; a first one is never replaced."""
    with ANSWERS.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        answers = json.load(file)
        known = answers.setdefault(script, {})
        if when == "later" or when not in known:
            known[when] = said
        file.seek(0)
        file.truncate()
        file.write(json.dumps(answers, indent=1, sort_keys=True) + "\n")


def main() -> None:
    """Run the scripts that have no first answer yet, or with `--again` those that have one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("scripts", nargs="*")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    answers = json.loads(ANSWERS.read_text())
    for unseen in [*UNSEEN, *AFTERWARDS, *THIRD]:
        known = answers.get(unseen.script, {})
        wanted = not options.scripts or unseen.script in options.scripts
        when = "later" if options.again else "first"
        if not wanted or (when == "first") == ("first" in known):
            continue
        with contextlib.ExitStack() as stack:
            kept = options.keep and options.keep / f"{unseen.script}-{when}"
            folder = kept or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            said = answer(unseen, folder)
        print(unseen.script, when, said or "did not die for memory", flush=True)
        if said:
            note(unseen.script, when, said)


if __name__ == "__main__":
    main()
