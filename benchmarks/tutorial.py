"""The picture pipeline of every tutorial into TensorFlow: list, decode, resize 256, float32 / 255, batch 32.

Covers: `python -m benchmarks.tutorial [--rounds 3] [--limits none 1.2GB 600MB]`: penstock against tf.data, each in
a fresh process and a fresh memory limit, in turns; the first pass beside the later ones, and the peak of
anonymous memory.
Does not cover: other loaders (run.py), other doors (doors.py).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.report import machine
from penstock.memory.jail import run_limited

PICTURES, HEIGHT, WIDTH, SIDE = 480, 375, 500, 256
PASSES = 3
ROOMY = "none"
LIMITS = (ROOMY, "1.2GB", "600MB")
AIMS = {ROOMY: 1.25}
"""Of tf.data's speed; 1.1 under a limit."""
RESULTS = Path(__file__).parent / "results" / "tutorial"

Found = dict[str, dict[str, list[dict[str, Any]]]]
"""Rounds by limit and contestant."""


def make_data(folder: Path) -> None:
    """JPEG photos of the usual size in class folders."""
    import numpy as np
    import simplejpeg

    rng = np.random.default_rng(0)
    waves = (np.sin(np.arange(HEIGHT) / 9)[:, None] * 60 + np.cos(np.arange(WIDTH) / 23) * 60 + 128)[:, :, None]
    for index in range(PICTURES):
        path = folder / f"class{index % 4}"
        path.mkdir(parents=True, exist_ok=True)
        noisy = np.clip(waves + rng.integers(-25, 25, (HEIGHT, WIDTH, 3)), 0, 255).astype(np.uint8)
        (path / f"{index:05d}.jpg").write_bytes(simplejpeg.encode_jpeg(noisy, quality=85))


def ours(folder: Path) -> Iterable[Any]:
    """As the README says it."""
    import penstock as ps

    ds = ps.read_images(folder, size=(SIDE, SIDE), dtype="float32", scale=1 / 255)
    batches: Iterable[Any] = ds.shuffle(seed=1).batch(32).tensorflow()
    return batches


def theirs(folder: Path) -> Iterable[Any]:
    """As TensorFlow's tutorial on loading images says it."""
    import tensorflow as tf

    names = tf.constant(sorted(os.listdir(folder)))

    def load(path: Any) -> Any:
        label = tf.argmax(tf.strings.split(path, os.sep)[-2] == names)
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        return tf.image.resize(image, [SIDE, SIDE]) / 255.0, label

    files = tf.data.Dataset.list_files(str(folder / "*" / "*"), shuffle=True)
    loaded = files.map(load, num_parallel_calls=tf.data.AUTOTUNE)
    batches: Iterable[Any] = loaded.batch(32).prefetch(tf.data.AUTOTUNE)
    return batches


def child(name: str, folder: Path) -> None:
    """Some passes of one contestant; prints pictures a second as JSON."""
    slower: list[str] = []
    if name == "penstock":
        import penstock as ps

        ps.events.listen(lambda event: slower.append(str(event)) if event.kind == "fallback" else None)
    made = ours(folder) if name == "penstock" else theirs(folder)
    rates, cpu = [], []
    for _ in range(PASSES):
        began, worked, seen = time.perf_counter(), time.process_time(), 0
        for images, _labels in made:
            seen += int(images.shape[0])
        assert seen == PICTURES, f"{name} gave {seen} pictures"
        rates.append(seen / (time.perf_counter() - began))
        cpu.append(seen / (time.process_time() - worked))
    later, busy = statistics.median(rates[1:]), statistics.median(cpu[1:])
    print(json.dumps({"first": rates[0], "later": later, "cpu": busy, "fallbacks": slower}))


def measure(name: str, limit: str, folder: Path) -> dict[str, Any]:
    """One contestant in a fresh process, under a limit."""
    argv = [sys.executable, "-m", "benchmarks.tutorial", "--child", name, "--data", str(folder)]
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = run_limited(argv, "20GB" if limit == ROOMY else limit, env=env, capture=True)
    if done.returncode:
        return {"failed": "killed" if done.killed else (done.stderr or "").strip()[-300:]}
    found: dict[str, Any] = json.loads((done.stdout or "").splitlines()[-1])
    return {**found, "peak_mb": done.peak_nbytes // 1_000_000}


def table(found: Found) -> str:
    """Medians over the rounds, and the ratio within each round."""
    lines = [
        "| limit | | pictures/s | first pass of later | peak | of tf.data | by processor time | aim |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for limit, names in found.items():
        for name, rounds in names.items():
            good = [one for one in rounds if "failed" not in one]
            if not good:
                lines.append(f"| {limit} | {name} | {rounds[0]['failed'] if rounds else 'not run'} | | | | | |")
                continue
            rate, first = (statistics.median(one[key] for one in good) for key in ("later", "first"))
            peak = max(one["peak_mb"] for one in good)
            ratio, cpu, aim = "", "", ""
            if name == "penstock":
                pairs = list(zip(rounds, names["tf.data"], strict=True))
                both = [(a, b) for a, b in pairs if "failed" not in a and "failed" not in b]
                ratio, cpu = (
                    f"{statistics.median(a[key] / b[key] for a, b in both):.2f}" if both else "it failed"
                    for key in ("later", "cpu")
                )
                aim = f"{AIMS.get(limit, 1.1)}"
            lines.append(
                f"| {limit} | {name} | {rate:,.0f} | {first / rate:.2f} | {peak} MB | {ratio} | {cpu} | {aim} |"
            )
    return "\n".join(lines)


def save(found: Found, *, anew: bool) -> None:
    """Add rounds to those that were measured before, and write the table."""
    path = RESULTS.with_suffix(".json")
    both: Found = {} if anew or not path.exists() else json.loads(path.read_text())
    for limit, names in found.items():
        for name, rounds in names.items():
            both.setdefault(limit, {}).setdefault(name, []).extend(rounds)
    path.write_text(json.dumps(both, indent=1))
    where = machine()
    words = (
        f"{PICTURES} JPEG photos of {WIDTH} x {HEIGHT}: list, decode, resize to {SIDE}, float32 / 255, batch 32, into "
        "a loop over TensorFlow tensors. Fresh processes in turns, each in a control group of its own; ratios are "
        "medians over rounds, on the clock and by processor time of all threads."
    )
    measured = f"{where['cores']} cores, {where['cpu']}, {where['ram_gb']} GB RAM; {where['date']}"
    measured += f"; load {where['load_before']}"
    text = f"# The picture pipeline of every tutorial\n\n{words}\n\n{measured}; `python -m benchmarks.tutorial`.\n\n"
    RESULTS.with_suffix(".md").write_text(text + table(both) + "\n")
    print(table(found))


def main() -> None:
    """Measure all limits, or one contestant in a child."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limits", nargs="*", default=list(LIMITS))
    parser.add_argument("--anew", action="store_true")
    parser.add_argument("--child")
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    if given.child:
        child(given.child, given.data)
        return
    found: Found = {limit: {"penstock": [], "tf.data": []} for limit in given.limits}
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder))
        for _ in range(given.rounds):
            for limit, names in found.items():
                for name, rounds in names.items():
                    rounds.append(measure(name, limit, Path(folder)))
                    print(limit, name, rounds[-1], flush=True)
    save(found, anew=given.anew)
    if any(one.get("fallbacks") for names in found.values() for rounds in names.values() for one in rounds):
        raise SystemExit("slower paths were taken: see the results")


if __name__ == "__main__":
    main()
