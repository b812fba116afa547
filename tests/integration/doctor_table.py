"""The causes that can be shown on this machine: a script for each, its limit, and how it is cured.

A script that has a `.cured.py` beside it is cured by hand; the others are cured by `penstock doctor --fix`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.doctor.patch.apply import apply_edits
from penstock.doctor.static.scan import scan

SCRIPTS = Path(__file__).with_name("doctor_scripts")
HELD_OUT_SCRIPTS = Path(__file__).with_name("doctor_heldout")
MB = 1_000_000


@dataclass(frozen=True)
class Case:
    """One script: the cause it shows, its limit, what must be there first; `env` cures it without a change."""

    script: str
    cause: str
    limit: int
    prepare: str = ""
    quick: bool = False
    static: bool = True
    dies: bool = True
    env: tuple[tuple[str, str], ...] = ()


CASES = [
    Case("whole_table_loaded", "whole-table-loaded", 200 * MB, "table", quick=True),
    Case("whole_array_loaded", "whole-array-loaded", 160 * MB, "array"),
    Case("list_of_images", "list-of-images", 250 * MB, "pictures"),
    Case("pieces_joined", "pieces-joined", 300 * MB),
    Case("dense_expansion", "dense-expansion", 400 * MB),
    Case("arrays_to_fit", "arrays-to-fit", 800 * MB),
    Case("shuffle_buffer", "shuffle-buffer", 900 * MB),
    Case("cache_in_memory", "cache-in-memory", 900 * MB),
    Case("copy_on_access", "copy-on-access", 520 * MB),
    Case("unbounded_cache", "unbounded-cache", 300 * MB, quick=True),
    Case("unbounded_lru", "unbounded-cache", 300 * MB),
    Case("prefetch_product", "prefetch-product", 500 * MB),
    Case("pools_every_epoch", "pools-every-epoch", 220 * MB, dies=False),
    Case("outputs_kept", "outputs-kept", 500 * MB),
    Case("list_never_cleared", "list-never-cleared", 350 * MB),
    Case("loss_keeps_graph", "loss-keeps-graph", 700 * MB),
    Case("validation_with_grad", "validation-with-grad", 700 * MB),
    Case("predict_joins", "predict-joins", 900 * MB),
    Case("models_rebuilt", "models-rebuilt", 900 * MB),
    Case("retracing", "retracing", 330 * MB, static=False),
    Case("step_too_big", "step-too-big", 600 * MB, static=False),
    Case("optimizer_state", "optimizer-state", 680 * MB, static=False),
    Case("longest_batch", "longest-batch", 500 * MB, static=False),
    Case("save_peak", "save-peak", 400 * MB),
    Case("weights_per_rank", "weights-per-rank", 380 * MB, "weights"),
    Case(
        "allocator_keeps",
        "allocator-keeps",
        380 * MB,
        static=False,
        dies=False,
        env=(("MALLOC_MMAP_THRESHOLD_", "65536"),),
    ),
    Case("page_cache", "page-cache", 200 * MB, "array", static=False, dies=False),
    Case("sampler_lists", "sampler-lists", 700 * MB, static=False),
    Case("reference_cycles", "reference-cycles", 300 * MB),
    Case("open_figures", "open-figures", 350 * MB),
    Case("joblib_copies", "joblib-copies", 420 * MB),
    Case("gbdt_copies", "gbdt-copies", 480 * MB),
    Case("object_dtype", "object-dtype", 400 * MB),
    Case("vocabulary_logits", "vocabulary-logits", 600 * MB, static=False),
    Case("interleave_buffers", "interleave-buffers", 900 * MB),
    Case("autotune_host", "autotune-host", 700 * MB),
    Case("tokenizer_cache", "tokenizer-cache", 100 * MB),
    Case("handle_before_fork", "handle-before-fork", 700 * MB),
    Case("retry_in_handler", "retry-in-handler", 1_500 * MB),
    Case("compile_pool", "compile-pool", 580 * MB),
    Case("two_pipelines", "two-pipelines", 800 * MB),
]

HELD_OUT = [
    Case("arrow_table", "whole-table-loaded", 330 * MB, "parquet"),
    Case("json_lines", "whole-table-loaded", 180 * MB, "json"),
    Case("gallery", "list-of-images", 270 * MB, "pictures"),
    Case("growing_tensor", "pieces-joined", 560 * MB),
    Case("smoothed_loss", "loss-keeps-graph", 650 * MB),
    Case("mixed_stream", "shuffle-buffer", 1_100 * MB),
    Case("embeddings", "outputs-kept", 640 * MB),
    Case("jax_lengths", "retracing", 450 * MB),
    Case("spawned_scorers", "joblib-copies", 450 * MB),
    Case("remembered_items", "unbounded-cache", 620 * MB),
    Case("best_weights", "save-peak", 450 * MB),
    Case("dense_text", "dense-expansion", 420 * MB),
    Case("boosted_table", "gbdt-copies", 420 * MB),
    Case("annotations", "copy-on-access", 520 * MB),
    Case("searched_models", "models-rebuilt", 900 * MB),
    Case("charts", "open-figures", 350 * MB),
    Case("checked_with_graph", "validation-with-grad", 700 * MB),
]
"""The same causes in other words: written after the detectors, and run once before anything was changed for them."""


def prepare(what: str, folder: Path) -> None:
    """Make the data that a script reads."""
    if what == "table":
        line = ",".join(str(n % 9) for n in range(20)) + "\n"
        (folder / "table.csv").write_text(",".join(f"c{n}" for n in range(20)) + "\n" + line * 1_500_000)
    elif what == "array":
        np.lib.format.open_memmap(folder / "array.npy", mode="w+", dtype=np.float64, shape=(20_000, 2_000)).flush()
    elif what == "pictures":
        import cv2

        (folder / "pictures").mkdir()
        cv2.imwrite(str(folder / "pictures" / "000.png"), np.zeros((1000, 1000, 3), np.uint8))
        for number in range(1, 150):
            os.link(folder / "pictures" / "000.png", folder / "pictures" / f"{number:03}.png")
    elif what == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        values = np.random.default_rng(0).standard_normal(1_500_000)
        pq.write_table(pa.table({f"c{n}": values for n in range(20)}), folder / "events.parquet")
    elif what == "json":
        lines = (
            f'{{"id": {n}, "label": {n % 2}, "text": "event {n}", "tags": ["a{n}", "b"]}}\n' for n in range(500_000)
        )
        with (folder / "events.jsonl").open("w") as file:
            file.writelines(lines)
    elif what == "weights":
        code = "import torch; torch.save(torch.nn.Linear(6000, 6000).state_dict(), 'weights.pt')"
        subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)


def cured_script(case: Case, folder: Path) -> Path:
    """The script after its cure: written by hand, or patched by `--fix`."""
    by_hand, path = SCRIPTS / f"{case.script}.cured.py", SCRIPTS / f"{case.script}.py"
    if by_hand.exists() or case.env:
        return by_hand if by_hand.exists() else path
    edits = [edit for finding in scan(path, case.limit) for edit in finding.found.edits]
    assert edits, f"{case.script} has no cure"
    patched = folder / "patched.py"
    patched.write_text(apply_edits(path.read_text(), edits))
    return patched


def run_case(
    script: Path, limit: int, folder: Path, env: tuple[tuple[str, str], ...] = ()
) -> tuple[int, dict[str, Any], str]:
    """Run a script with `penstock run` in a folder; exit code, verdict and what it printed."""
    out = folder / f"run-{script.name}"
    command = [sys.executable, "-m", "penstock", "run", "--memory", str(limit), "--out", str(out), "--"]
    done = subprocess.run(
        [*command, sys.executable, str(script)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "2", **dict(env)},
    )
    return done.returncode, json.loads((out / "verdict.json").read_text()), done.stdout + done.stderr
