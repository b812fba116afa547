"""What arrives on the far side of each framework's door, in a fresh process as a user starts it.

Covers: `python -m benchmarks.doors [--rounds 3] [--cases table ...] [--doors numpy ...]`: tables, 8-bit and float32
pictures, with and without labels, through NumPy, torch, JAX, a plain loop over TensorFlow, tf.data behind it, and
`model.fit` on the three backends of Keras; fall-backs counted. Rounds are added to
those that were measured before (`--anew` forgets them).
Does not cover: other loaders (run.py).

Doors are measured one after the other, round by round, and told as ratios to plain NumPy iteration of the same round:
on a shared machine only these mean something. A fall-back to a slower path fails the benchmark.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.report import machine

FITTED = ("fit tensorflow", "fit torch", "fit jax")
DOORS = ("numpy", "torch", "jax", "tensorflow", "tensorflow graph", *FITTED)
CASES = ("table", "uint8", "float32", "table, no label", "uint8, no label", "float32, no label")
ROWS, PICTURES, SIDE = 1_000_000, 600, 224
RESULTS = Path(__file__).parent / "results" / "doors"

Found = dict[str, dict[str, list[dict[str, Any]]]]
"""Rounds by case and door."""


def make_data(folder: Path) -> None:
    """A Parquet table of 20 numbers and a label, and pictures in class folders."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    import simplejpeg

    rng = np.random.default_rng(0)
    numbers = {f"f{i}": rng.standard_normal(ROWS).astype(np.float32) for i in range(20)}
    pq.write_table(
        pa.table({**numbers, "label": rng.integers(0, 2, ROWS)}), folder / "t.parquet", row_group_size=50_000
    )
    waves = np.sin(np.arange(256) / 9)[:, None, None] * 90 + 128
    for index in range(PICTURES):
        path = folder / "pictures" / f"class{index % 4}"
        path.mkdir(parents=True, exist_ok=True)
        noisy = np.clip(waves + rng.integers(-40, 40, (256, 256, 3)), 0, 255).astype(np.uint8)
        (path / f"{index:05d}.jpg").write_bytes(simplejpeg.encode_jpeg(noisy, quality=85))


def dataset(case: str, folder: Path) -> Any:
    """The pipeline of one case, as people write it."""
    import penstock as ps

    kind, labelled = case.split(",")[0], "no label" not in case
    if kind == "table":
        columns: dict[str, Any] = {"label": "label"} if labelled else {"features": [f"f{i}" for i in range(20)]}
        return ps.read_parquet(folder / "t.parquet", **columns).shuffle(seed=1).batch(1024)
    numbers: dict[str, Any] = {} if kind == "uint8" else {"dtype": "float32", "scale": 1 / 255}
    labels: dict[str, Any] = {} if labelled else {"labels": None}
    return ps.read_images(folder / "pictures", size=(SIDE, SIDE), **numbers, **labels).shuffle(seed=1).batch(32)


def clocks() -> Any:
    """Seconds on the clock, and of all threads on the processors: on a shared machine the second is what tells."""
    import numpy as np

    return np.array([time.perf_counter(), time.process_time()])


def passes(door: str, ds: Any) -> Iterator[Any]:
    """Seconds of one pass after the other."""
    if door in FITTED:
        yield from _fitted(ds)
        return
    made = {"numpy": lambda: ds, "torch": lambda: ds.torch(), "jax": lambda: ds.jax()}.get(
        door, lambda: ds.tensorflow()
    )()
    if door == "tensorflow graph":
        made = made.map(lambda *element: element)
    while True:
        began = clocks()
        for element in made:
            del element
        yield clocks() - began


def _fitted(ds: Any) -> Iterator[Any]:
    """`model.fit` (`predict` where there is no label) with a model that costs next to nothing."""
    import keras

    field = ds.schema.fields[0]

    class Corner(keras.layers.Layer):  # type: ignore[misc]
        """The first number of each sample: whatever arrives is touched, next to nothing is computed."""

        def call(self, x: Any) -> Any:
            return keras.ops.cast(
                keras.ops.reshape(x[(slice(None), *(0,) * (len(field.shape) - 1))], (-1, 1)), "float32"
            )

    model = keras.Sequential([keras.Input(field.shape[1:], dtype=str(field.dtype)), Corner(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    feed, labelled = ds.keras(), len(ds.schema.fields) > 1
    while True:
        began = clocks()
        if labelled:
            model.fit(feed, epochs=1, verbose=0)
        else:
            model.predict(feed, verbose=0)
        yield clocks() - began


def child(door: str, case: str, folder: Path) -> None:
    """One door and case in this process; prints rates and fall-backs as JSON."""
    import penstock as ps

    slower: list[str] = []
    ps.events.listen(lambda event: slower.append(event.kind) if "fall" in event.kind else None)
    ds = dataset(case, folder)
    rows = ROWS if case == "table" else PICTURES
    stream = passes(door, ds)
    seconds = [next(stream) for _ in range(4 if case.startswith("table") else 3)]
    rates = [float(rows / s[0]) for s in seconds]
    worked = [float(rows / s[1]) for s in seconds]
    later, cpu = statistics.median(rates[1:]), statistics.median(worked[1:])
    print(json.dumps({"first": rates[0], "later": later, "cpu": cpu, "fallbacks": slower}))


def measure(door: str, case: str, folder: Path) -> dict[str, Any]:
    """The same in a fresh interpreter."""
    argv = [sys.executable, "-m", "benchmarks.doors", "--child", door, "--case", case, "--data", str(folder)]
    backend = door.split()[-1] if door in FITTED else "tensorflow"
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": backend}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise SystemExit(f"{door}, {case}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(found: Found) -> str:
    """Medians over rounds of the ratio to NumPy in the same round, and of the first pass to later ones."""
    lines = [
        "| case | door | rate, later passes | of NumPy | of NumPy, by processor time | rounds |",
        "|---|---|---|---|---|---|",
    ]
    for case, doors in found.items():
        for door, rounds in doors.items():
            if "numpy" not in doors or len(rounds) != len(doors["numpy"]):
                continue
            ratio, cpu = (
                statistics.median(mine[k] / plain[k] for mine, plain in zip(rounds, doors["numpy"], strict=True))
                for k in ("later", "cpu")
            )
            rate = statistics.median(one["later"] for one in rounds)
            lines.append(f"| {case} | {door} | {rate:,.0f}/s | {ratio:.2f} | {cpu:.2f} | {len(rounds)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure all doors, or one in a child."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--doors", nargs="*", default=list(DOORS))
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--anew", action="store_true")
    parser.add_argument("--child")
    parser.add_argument("--case")
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    if given.child:
        child(given.child, given.case, given.data)
        return
    found: Found = {case: {d: [] for d in given.doors} for case in given.cases}
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder))
        for _ in range(given.rounds):
            for case, doors in found.items():
                for door, rounds in doors.items():
                    rounds.append(measure(door, case, Path(folder)))
                    print(case, door, rounds[-1], flush=True)
    save(found, RESULTS, anew=given.anew)
    slower = {
        kind for doors in found.values() for rounds in doors.values() for one in rounds for kind in one["fallbacks"]
    }
    print(table(found))
    if slower:
        raise SystemExit(f"slower paths were taken: {', '.join(sorted(slower))}")


def save(found: Found, where: Path, *, anew: bool) -> None:
    """Add rounds to those that were measured before, and write the table."""
    path = where.with_suffix(".json")
    both: Found = {} if anew or not path.exists() else json.loads(path.read_text())
    for case, doors in found.items():
        for door, rounds in doors.items():
            both.setdefault(case, {}).setdefault(door, []).extend(rounds)
    path.write_text(json.dumps(both, indent=1))
    words = (
        "Fresh processes, door after door, round by round; ratios are medians over the rounds to plain NumPy iteration "
        "of the same round, on the clock and by processor time of all threads (on a machine shared with other work, "
        "the clock tells little). Without a label `fit` is `predict`. Tables in rows, pictures in pictures a second."
    )
    here = machine()
    measured = (
        f"{here['cores']} cores, {here['cpu']}, {here['ram_gb']} GB RAM; {here['date']}; load {here['load_before']}"
    )
    text = f"# Through each framework's door\n\n{words}\n\n{measured}; `python -m benchmarks.doors`.\n\n"
    where.with_suffix(".md").write_text(text + table(both) + "\n")


if __name__ == "__main__":
    main()
