"""What arrives on the far side of each framework's door, in a fresh process as a user starts it.

Covers: `python -m benchmarks.doors [--rounds 1] [--cases table ...] [--doors torch ...]`: tables, 8-bit and float32
pictures, with and without labels, through torch, JAX, a plain loop over TensorFlow, tf.data behind it, and `model.fit`
on the three backends of Keras; fall-backs counted. Rounds are added to those that were measured before (`--anew`
forgets them).
Does not cover: other loaders (run.py).

Each door has a process of its own. Its first pass comes first; then plain NumPy iteration, the door, and where the
framework has work of its own the same framework with one batch that is at hand (no door at all) take turns. A door is
told as a share of NumPy iteration, and of what is possible: no more than NumPy, than the framework alone, or than the
cores, which have the processor time of both to find. A fall-back to a slower path fails the benchmark.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.report import machine

FITTED = ("fit tensorflow", "fit torch", "fit jax")
DOORS = ("torch", "jax", "tensorflow", "tensorflow graph", *FITTED)
CASES = ("table", "uint8", "float32", "table, no label", "uint8, no label", "float32, no label")
ROWS, PICTURES, SIDE = 4_000_000, 1_200, 224
BATCH = {"table": 1024, "uint8": 32, "float32": 32}
TURNS, LEAST_S = 3, 0.4
"""Turns of one process, and how long each contestant's turn takes at least."""
AIM = 0.9
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


def data() -> Path:
    """The folder with both, made once."""
    folder = Path(__file__).resolve().parents[1] / ".bench" / f"doors-{ROWS}-{PICTURES}"
    if not folder.exists():
        fresh = folder.with_suffix(".part")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        make_data(fresh)
        fresh.rename(folder)
    return folder


def dataset(case: str, folder: Path) -> Any:
    """The pipeline of one case, as people write it."""
    import penstock as ps

    kind, labelled = case.split(",")[0], "no label" not in case
    if kind == "table":
        columns: dict[str, Any] = {"label": "label"} if labelled else {"features": [f"f{i}" for i in range(20)]}
        return ps.read_parquet(folder / "t.parquet", **columns).shuffle(seed=1).batch(BATCH[kind])
    numbers: dict[str, Any] = {} if kind == "uint8" else {"dtype": "float32", "scale": 1 / 255}
    labels: dict[str, Any] = {} if labelled else {"labels": None}
    return (
        ps.read_images(folder / "pictures", size=(SIDE, SIDE), **numbers, **labels).shuffle(seed=1).batch(BATCH[kind])
    )


def passes(door: str, ds: Any) -> Iterator[None]:
    """One pass after the other."""
    if door in FITTED:
        yield from _fitted(ds.schema, ds.keras())
        return
    made = {"numpy": lambda: ds, "torch": lambda: ds.torch(), "jax": lambda: ds.jax()}.get(
        door, lambda: ds.tensorflow()
    )()
    if door == "tensorflow graph":
        made = made.map(lambda *element: element)
    while True:
        for element in made:
            del element
        yield


def at_hand(door: str, ds: Any, batches: int) -> Iterator[None] | None:
    """The same framework's work with one batch again and again; None where only the door itself works."""
    batch = next(iter(ds.at_epoch(0)))
    if door in FITTED:
        return _fitted(ds.schema, _at_hand(batch, batches, door.split()[-1]))
    return _graph(batch, batches) if door == "tensorflow graph" else None


def _repeated(batch: Any, batches: int) -> Any:
    import tensorflow as tf

    made = tf.data.Dataset.from_tensors(tf.nest.map_structure(tf.constant, batch)).repeat(batches)
    return made.apply(tf.data.experimental.assert_cardinality(batches))


def _graph(batch: Any, batches: int) -> Iterator[None]:
    made = _repeated(batch, batches).map(lambda *element: element)
    while True:
        for element in made:
            del element
        yield


def _fitted(schema: Any, feed: Any) -> Iterator[None]:
    """`model.fit` (`predict` where there is no label) with a model that costs next to nothing."""
    import keras

    field = schema.fields[0]

    class Corner(keras.layers.Layer):  # type: ignore[misc]
        """The first number of each sample: whatever arrives is touched, next to nothing is computed."""

        def call(self, x: Any) -> Any:
            return keras.ops.cast(
                keras.ops.reshape(x[(slice(None), *(0,) * (len(field.shape) - 1))], (-1, 1)), "float32"
            )

    model = keras.Sequential([keras.Input(field.shape[1:], dtype=str(field.dtype)), Corner(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    while True:
        if len(schema.fields) > 1:
            model.fit(feed, epochs=1, verbose=0)
        else:
            model.predict(feed, verbose=0)
        yield


def _at_hand(batch: Any, batches: int, backend: str) -> Any:
    """What Keras takes, without any data behind it."""
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter

    def again() -> Iterator[Any]:
        yield from [made] * batches

    class AtHand(DataAdapter):  # type: ignore[misc]
        def get_tf_dataset(self) -> Any:
            return _repeated(batch, batches)

        def get_jax_iterator(self) -> Any:
            return again()

        def get_torch_dataloader(self) -> Any:
            return again()

        num_batches, batch_size, has_partial_batch, partial_batch_size = batches, None, None, None

    made: Any = None
    if backend == "jax":
        import jax

        made = jax.device_put(batch)
    if backend == "torch":
        import torch

        made = tuple(map(torch.from_numpy, batch)) if isinstance(batch, tuple) else torch.from_numpy(batch)
    return AtHand()


def rate(stream: Iterator[None], rows: int) -> tuple[float, float]:
    """Rows a second of one turn: on the clock, and by processor time of all threads."""
    began, worked, passed = time.perf_counter(), time.process_time(), 0
    while not passed or time.perf_counter() - began < LEAST_S:
        next(stream)
        passed += 1
    return rows * passed / (time.perf_counter() - began), rows * passed / (time.process_time() - worked)


def child(door: str, case: str, folder: Path) -> None:
    """One door and case in this process; prints rates and fall-backs as JSON."""
    import penstock as ps

    importlib.import_module("keras" if door in FITTED else door.split()[0])  # loading it is no pass
    slower: list[str] = []
    ps.events.listen(lambda event: slower.append(event.kind) if "fall" in event.kind else None)
    ds = dataset(case, folder)
    kind = case.split(",")[0]
    rows = ROWS if kind == "table" else PICTURES
    stream = passes(door, ds)
    began = time.perf_counter()
    next(stream)
    first = rows / (time.perf_counter() - began)
    rivals: dict[str, Iterator[None]] = {"numpy": passes("numpy", ds), "door": stream}
    own = at_hand(door, ds, rows // BATCH[kind])
    if own is not None:
        rivals["at hand"] = own
    for name in ("numpy", "at hand"):  # nobody's first pass counts below
        if name in rivals:
            next(rivals[name])
    turns: list[dict[str, Any]] = [{name: rate(rival, rows) for name, rival in rivals.items()} for _ in range(TURNS)]
    print(json.dumps({"first": first, "turns": turns, "fallbacks": slower}))


def measure(door: str, case: str, folder: Path) -> dict[str, Any]:
    """The same in a fresh interpreter."""
    argv = [sys.executable, "-m", "benchmarks.doors", "--child", door, "--case", case, "--data", str(folder)]
    backend = door.split()[-1] if door in FITTED else "tensorflow"
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": backend}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise RuntimeError(f"{door}, {case}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _middle(turns: list[dict[str, Any]], of: Callable[[dict[str, Any]], float]) -> float:
    return statistics.median(of(turn) for turn in turns)


def possible(turn: dict[str, Any], cores: int) -> float:
    """Rows a second that no door can exceed: those of NumPy, of the framework alone, and of the cores for both."""
    others = [found for name, found in turn.items() if name != "door"]
    return float(min(*(clock for clock, _ in others), cores / sum(1 / cpu for _, cpu in others)))


def table(found: Found) -> str:
    """Medians over all turns, ratios within each turn."""
    cores = len(os.sched_getaffinity(0))
    lines = [
        "| case | door | through it | first pass | NumPy | one batch at hand | of NumPy | of what is possible | "
        "of NumPy, by processor time | turns |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case, doors in found.items():
        for door, rounds in doors.items():
            turns = [turn for one in rounds for turn in one["turns"]]
            if not turns:
                continue
            hand = "at hand" in turns[0]
            rates = [f"{_middle(turns, lambda t, k=key: t[k][0]):,.0f}" for key in ("door", "numpy")]  # type: ignore[misc]
            own = f"{_middle(turns, lambda t: t['at hand'][0]):,.0f}" if hand else ""
            best = _middle(turns, lambda t: t["door"][0] / possible(t, cores))
            of_numpy, cpu = (_middle(turns, lambda t, k=k: t["door"][k] / t["numpy"][k]) for k in (0, 1))  # type: ignore[misc]
            first = statistics.median(one["first"] for one in rounds)
            lines.append(
                f"| {case} | {door} | {rates[0]} | {first:,.0f} | {rates[1]} | {own} | {_judged(of_numpy)} | "
                f"{_judged(best)} | {cpu:.2f} | {len(turns)} |"
            )
    return "\n".join(lines)


def _judged(share: float) -> str:
    return f"{share:.2f}" if share >= AIM else f"{share:.2f} (missed)"


def main() -> None:
    """Measure all doors, or one in a child."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1)
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
    if given.anew:
        RESULTS.with_suffix(".json").unlink(missing_ok=True)
    failed: list[str] = []
    folder = data()
    for _ in range(given.rounds):
        for case in given.cases:
            for door in given.doors:
                try:
                    one = measure(door, case, folder)
                except RuntimeError as error:  # the others are worth having
                    failed.append(str(error))
                    continue
                save(case, door, one)  # now: a run that is cut short leaves what it has
                print(case, door, one, flush=True)
                failed += [f"{case}, {door}: a slower path was taken: {kind}" for kind in set(one["fallbacks"])]
    if failed:
        raise SystemExit("\n".join(failed))


def save(case: str, door: str, one: dict[str, Any]) -> None:
    """Add a round to those that were measured before, and write the table."""
    path = RESULTS.with_suffix(".json")
    found: Found = json.loads(path.read_text()) if path.exists() else {}
    here = machine()
    one = {**one, "date": here["date"], "load": here["load_before"]}
    found.setdefault(case, {}).setdefault(door, []).append(one)
    path.write_text(json.dumps(found, indent=1))
    words = (
        "Rows of a table of 20 numbers in batches of 1,024, or pictures of 224 x 224 in batches of 32, a second. Each "
        "door in a fresh process: the first pass first, then in turns plain NumPy iteration, the door, and the same "
        "framework fed with one batch that is at hand, as often as the data has batches: what the framework takes for "
        "itself. What is possible is the least of three: NumPy, the framework alone, and the cores, which find the "
        f"processor time of both. Ratios are medians over turns; the aim is {AIM}. Without a label `fit` is `predict`."
    )
    measured = f"{here['cores']} cores, {here['cpu']}, {here['ram_gb']} GB RAM; {here['date']}; loads are in doors.json"
    text = f"# Through each framework's door\n\n{words}\n\n{measured}; `python -m benchmarks.doors`.\n\n"
    RESULTS.with_suffix(".md").write_text(text + table(found) + "\n")


if __name__ == "__main__":
    main()
