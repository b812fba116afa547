"""A run's numbers as TensorBoard scalars.

Covers: event files that TensorBoard reads, with every progress event, memory sample and epoch of a run.
Does not cover: framing records (sources/tfrecord/write.py, handed in), graphs, images, histograms.

An event file is a TFRecord file of Event messages: wall_time (1, double), step (2, varint), file_version (3, text),
summary (5); a Summary is a list (1) of values: tag (1, text), simple_value (2, float). That little is written here by
hand, so that no TensorFlow is needed.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from penstock.core.wire_format import delimited, varint
from penstock.watch.digest import number
from penstock.watch.run_folder import Record, read_events

BATCH = 1000
"""Records are written in groups of this many."""


def export_scalars(
    folder: str | os.PathLike[str], out: str | os.PathLike[str], frame: Callable[[bytes], bytes]
) -> tuple[Path, int]:
    """Write a run's scalars into the folder `out`; the file, and how many records it has. `frame` wraps a record."""
    target = Path(out)
    target.mkdir(parents=True, exist_ok=True)
    events = read_events(folder)
    first = next(events, None)
    started = int(first["t"]) if first is not None and isinstance(first.get("t"), (int, float)) else 0
    # The same run gives the same name, so that exporting again replaces the file instead of doubling the curves.
    path = target / f"events.out.tfevents.{started:010d}.{socket.gethostname()}.penstock"
    half = path.with_name(f".{path.name}.part")
    count = 0
    with open(half, "wb") as file:
        file.write(frame(_double(1, float(started)) + delimited(3, b"brain.Event:2")))
        for group in _grouped(scalars([] if first is None else _chain(first, events))):
            file.write(b"".join(frame(encode(*scalar)) for scalar in group))
            count += len(group)
    half.replace(path)
    return path, count


def scalars(events: Iterable[Record]) -> Iterator[tuple[float, int, dict[str, float]]]:
    """Time, step and numbers of each event that has any. Memory is plotted at the step during which it was measured."""
    step = 0
    for event in events:
        t, kind = event.get("t"), event["kind"]
        if not isinstance(t, (int, float)):
            continue
        if kind == "train.progress":
            step = _step(event.get("total_steps"), step)
            values = {f"train/{name}": value for name, value in _numbers(event.get("logs")).items()}
            own = {name: event.get(name) for name in ("samples_per_s", "waited_share", "micro")}
            values |= {f"run/{name}": value for name, value in _numbers(own).items()}
        elif kind == "train.epoch":
            epochs = _numbers(event.get("logs"))
            values = {
                f"epoch/{'validation' if name.startswith('val_') else 'train'}/{name.removeprefix('val_')}": value
                for name, value in epochs.items()
            }
        elif kind == "memory.sample":
            values = {"memory/used": event.get("used_nbytes"), "memory/limit": event.get("limit_nbytes")}
            values = _numbers(values)
            values |= {f"memory/holders/{name}": n for name, n in _numbers(event.get("holders")).items()}
        else:
            continue
        if values:
            yield float(t), step, values


def encode(time_s: float, step: int, values: dict[str, float]) -> bytes:
    """One Event message."""
    summary = b"".join(
        delimited(1, delimited(1, tag.encode()) + b"\x15" + struct.pack("<f", _as_float32(value)))
        for tag, value in values.items()
    )
    return _double(1, time_s) + b"\x10" + varint(step) + delimited(5, summary)


def _numbers(values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        return {}
    return {str(name): found for name, value in values.items() if (found := number(value)) is not None}


def _step(told: Any, before: int) -> int:
    return told if isinstance(told, int) and told >= 0 else before


def _as_float32(value: float) -> float:
    """A number that a 32-bit float can hold; larger ones become infinite instead of failing."""
    return value if abs(value) <= 3.4e38 or value != value else float("inf") * (1 if value > 0 else -1)


def _chain(first: Record, rest: Iterator[Record]) -> Iterator[Record]:
    yield first
    yield from rest


def _grouped(
    items: Iterable[tuple[float, int, dict[str, float]]],
) -> Iterator[list[tuple[float, int, dict[str, float]]]]:
    group = []
    for item in items:
        group.append(item)
        if len(group) == BATCH:
            yield group
            group = []
    if group:
        yield group


def _double(field: int, value: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", value)
