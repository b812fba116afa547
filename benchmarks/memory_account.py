"""Who holds the memory of a training, and how much of it nobody can name.

Run: python -m benchmarks.memory_account [STACK ...] [--steps N] [--dry]    default: all four stacks, a minute each
Writes results/memory_account.json and .md unless --dry is given; stacks that are not named are dropped from the page.
Covers: a CNN on pictures from arrays, on torch, Keras-torch, Keras-TensorFlow and JAX; a report at each step.
Does not cover: accelerators; children of the process.

Unnamed is what `ps.memory_report()` calls "other allocators" and "not accounted for": the rest when leases, named
holders, libraries, stacks, Python's objects and malloc's books are taken off. Told is the worst report of the run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]  # so that it also runs as a file

from benchmarks.report import machine  # noqa: E402

STACKS = {"torch": "torch", "keras-torch": "torch", "keras-tensorflow": "tensorflow", "jax": "jax"}
RESULTS = ROOT / "benchmarks/results/memory_account.json"
ROWS, BATCH = 2048, 64
MB = 10**6
TARGET = 0.1


def on_torch(batches: Any, look: Callable[[], None]) -> None:
    """Plain torch under the guard."""
    import torch

    from penstock.guard import Guard

    layers: list[torch.nn.Module] = []
    for _ in range(4):
        layers += [torch.nn.Conv2d(32 if layers else 3, 32, 3, padding=1), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 10))
    guard = Guard(model, torch.optim.AdamW(model.parameters(), 0.001))
    for x, y in batches:
        guard.step((x, y), torch.nn.CrossEntropyLoss())
        look()


def on_keras(batches: Any, look: Callable[[], None]) -> None:
    """Keras on the backend of the environment."""
    import keras

    from penstock.guard import fit

    layers = [keras.layers.Conv2D(32, 3, padding="same", activation="relu") for _ in range(4)]
    model = keras.Sequential(
        [keras.Input((3, 48, 48)), keras.layers.Permute((2, 3, 1)), *layers, keras.layers.GlobalAveragePooling2D()]
    )
    model.add(keras.layers.Dense(10))
    model.compile("adamw", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    fit(
        model,
        batches,
        verbose=0,
        callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: look())],
    )


def on_jax(batches: Any, look: Callable[[], None]) -> None:
    """JAX with Optax under the guard."""
    import jax
    import jax.numpy as jnp
    import optax

    from penstock.guard import JaxGuard

    keys = jax.random.split(jax.random.key(0), 5)
    kernels = [jax.random.normal(keys[i], (32, 32 if i else 3, 3, 3)) * 0.1 for i in range(4)]

    def loss_fn(params: Any, batch: Any) -> Any:
        x = batch[0]
        for kernel in params["kernels"]:
            x = jax.nn.relu(jax.lax.conv(x, kernel, (1, 1), "SAME"))
        return optax.softmax_cross_entropy_with_integer_labels(x.mean((2, 3)) @ params["out"], batch[1]).mean()

    params: dict[str, Any] = {"kernels": kernels, "out": jax.random.normal(keys[4], (32, 10)) * 0.1}
    assert jnp.isfinite(params["out"]).all()
    guard = JaxGuard(loss_fn, optax.adamw(0.001), params)
    for x, y in batches:
        guard.step((x, y))
        look()


def run(stack: str, steps: int) -> dict[str, Any]:
    """Train and report at each step: the worst share without a name, and the parts of that moment."""
    import numpy as np

    import penstock as ps
    from penstock.memory.account import memory_report
    from penstock.memory.unleased import POOLS

    rng = np.random.default_rng(0)
    data = rng.normal(size=(ROWS, 3, 48, 48)).astype(np.float32), rng.integers(0, 10, ROWS)
    ds = ps.from_tensor_slices(data).shuffle(seed=1).map(lambda x, y: (x * 2, y)).batch(BATCH).take(steps)
    worst: dict[str, Any] = {"share": -1.0}
    reports = 0

    def look() -> None:
        nonlocal worst, reports
        report, reports = memory_report(), reports + 1
        unnamed = report.unexplained + report.kinds.get(POOLS, 0)
        if unnamed / report.measured.nbytes > worst["share"]:
            parts = {"leased": sum(budget.used for budget in report.budgets), **report.named, **report.kinds}
            parts = {**parts, "not accounted for": report.unexplained}
            worst = {"share": unnamed / report.measured.nbytes, "measured": report.measured.nbytes, "parts": parts}

    {"torch": on_torch, "jax": on_jax}.get(stack, on_keras)(ds, look)
    return {**worst, "reports": reports, "python_counted": arenas_nbytes()}


def arenas_nbytes() -> int:
    """Python's own count of its heap, which it only prints; "Python objects" is reckoned from their number."""
    with tempfile.TemporaryFile() as file:
        stderr = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            sys._debugmallocstats()
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        file.seek(0)
        found = re.search(rb"# arenas allocated current *= *([0-9,]+)", file.read())
    return 0 if found is None else int(found[1].replace(b",", b"")) << 20


def table(results: dict[str, Any]) -> str:
    """The results as a page."""
    kinds = list(dict.fromkeys(kind for found in results["stacks"].values() for kind in found["parts"]))
    lines = [
        "# Who holds the memory of a training",
        "",
        f"`python -m benchmarks.memory_account`, {results['when']}. A CNN on batches of {BATCH}; of all",
        "reports over the run the one with the largest share without a name. The aim is a tenth at most.",
        "",
        '"Python objects" is reckoned from their number; the last column is the interpreter\'s own count.',
        "",
        "| stack | in use | without a name | " + " | ".join(kinds) + " | reports | Python's heap, counted |",
        "|---" * (len(kinds) + 5) + "|",
    ]
    for stack, found in results["stacks"].items():
        cells = [f"{found['parts'].get(kind, 0) / MB:.1f} MB" for kind in kinds]
        head = [stack, f"{found['measured'] / MB:.0f} MB", f"{found['share']:.1%}"]
        lines.append(
            "| " + " | ".join([*head, *cells, str(found["reports"]), f"{found['python_counted'] / MB:.1f} MB"]) + " |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, or run one stack."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("stacks", nargs="*", metavar="STACK", help=", ".join(STACKS))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--dry", action="store_true", help="write nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        sys.stdout.write(json.dumps(run(options.one, options.steps)) + "\n")
        return
    found = {}
    for stack in options.stacks or STACKS:
        command = [sys.executable, str(ROOT / "benchmarks/memory_account.py"), "--one", stack]
        env = {**os.environ, "KERAS_BACKEND": STACKS[stack], "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
        command += ["--steps", str(options.steps)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=True)
        found[stack] = json.loads(done.stdout.splitlines()[-1])
        sys.stdout.write(f"{stack}: {json.dumps(found[stack])}\n")
        sys.stdout.flush()
    if not options.dry:
        results = {"when": f"{datetime.date.today()}, {machine()['cores']} cores, shared", "stacks": found}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(table(results))


if __name__ == "__main__":
    main()
