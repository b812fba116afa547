"""What a change would buy, by making it on a sample.

Covers: caching in memory and on disk, packing, packing with images resized, decoding at a smaller scale.
Does not cover: which of them is worth it (verdict.py).

Each trial is compared with the unchanged sample measured right before and after it: the same rows, the same moment.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from penstock.bench.chain import BenchPlan
from penstock.bench.facts import Flow, SampleTrial
from penstock.bench.limits import forget
from penstock.bench.measure import fill, from_storage, steady_flow
from penstock.bench.sample import BenchSubject
from penstock.core.errors import PenstockError
from penstock.core.sizes import size as written_size
from penstock.dataset import Dataset
from penstock.memory import current_limit
from penstock.read import read_images, read_parquet, read_webdataset
from penstock.sources.storage import files as storage

TRIAL_NBYTES = 32_000_000
"""Stored bytes of the sample that trials are made on: packing it takes about a second."""

_DISK_LEAST = 500_000_000
_CACHE_SHARE = 2 / 3
"""Of the data budget that a cache in memory may take."""


@dataclass(frozen=True)
class Ground:
    """The unchanged sample: what trials are compared with."""

    plan: BenchPlan
    subject: BenchSubject
    before_cold: Flow | None
    row_nbytes: float
    """Of a prepared row, in memory."""

    def now(self) -> float:
        """Rows a second of the unchanged sample at this moment."""
        return steady_flow(self.plan.chain(self.subject.dataset), self.plan.share(0.5)).rate

    def trial(self, name: str, flow: Flow, cold: Flow | None = None, **more: Any) -> SampleTrial:
        base = None if self.before_cold is None else self.before_cold.rate
        return SampleTrial(name, flow.rate, 0.0, None if cold is None else cold.rate, base, **more)

    def total(self, row_nbytes: float) -> int | None:
        """Bytes of the whole dataset at so many a row."""
        return None if self.subject.rows is None else round(self.subject.rows * row_nbytes)


def ground_of(plan: BenchPlan, subject: BenchSubject, row_nbytes: float) -> Ground:
    """The sample as it is."""
    chain = plan.chain(subject.dataset)
    if subject.database:  # it is asked in every epoch: a change is compared with that, not with rows at hand
        return Ground(plan, subject, None, row_nbytes)
    cold = from_storage(chain, plan.share(0.7), lambda: forget(subject.files))
    return Ground(plan, subject, cold, row_nbytes)


def run_trials(ground: Ground, say: Callable[[str], None]) -> list[SampleTrial]:
    """All trials that make sense for this kind of data. One that fails is reported as not tried.

    The unchanged sample is measured before and after each: a machine that gets busier does not look like a loss.
    """
    found: list[SampleTrial] = []
    before = ground.now()
    with _scratch() as folder:
        for name, attempt in _attempts(ground, folder):
            say(name)
            try:
                made = attempt()
            except PenstockError as error:
                found.append(SampleTrial(name, None, before, note=str(error).rstrip(".")))
                continue
            after = ground.now()
            found.append(replace(made, before=(before + after) / 2))
            before = after
    return found


Attempt = Callable[[], SampleTrial]


def _attempts(ground: Ground, folder: str | None) -> Iterator[tuple[str, Attempt]]:
    yield "cache in memory", lambda: _cached(ground, None)
    if folder is None:
        return
    yield "cache in a folder", lambda: _cached(ground, os.path.join(folder, "cache"))
    if ground.subject.images:
        yield "pack the files", lambda: _packed_images(ground, folder, None)
        if ground.plan.size is not None:
            name = f"pack resized to {ground.plan.size}"
            yield name, lambda: _packed_images(ground, folder, ground.plan.size)
            yield "decode at a smaller scale", lambda: _scaled(ground)
    elif ground.subject.source.source.label.startswith(("csv", "json", "text", "sql")):
        yield "pack as Parquet", lambda: _packed_table(ground, folder)


def _cached(ground: Ground, folder: str | None) -> SampleTrial:
    """Prepared samples kept before shuffle and function, which stay as they are."""
    dataset = ground.subject.dataset.cache() if folder is None else ground.subject.dataset.cache(folder)
    fill(ground.plan.chain(dataset, function=False))
    flow = steady_flow(ground.plan.chain(dataset), ground.plan.share(1.0))
    needs = ground.total(ground.row_nbytes)
    if folder is not None:
        return ground.trial("cache in a folder", flow, needs_nbytes=needs)
    fits = needs is None or needs < _CACHE_SHARE * current_limit().nbytes
    # Once it is full, storage is not asked again: what was cold is as fast as what was not.
    return ground.trial("cache in memory", flow, flow if ground.before_cold else None, needs_nbytes=needs, fits=fits)


def _packed_images(ground: Ground, folder: str, size: int | None) -> SampleTrial:
    plan, subject = ground.plan, ground.subject
    name = "pack the files" if size is None else f"pack resized to {size}"
    where = os.path.join(folder, "as-they-are" if size is None else "resized")
    report = read_images(list(subject.files)).write(where, "webdataset", size=size)
    labelled = isinstance(subject.dataset.schema.tree, tuple)
    wanted = ("jpg;png;webp", "cls") if labelled else "jpg;png;webp"
    packed = read_webdataset(where, sample=wanted, size=plan.size)
    return _of_packed(ground, name, packed, (report.files, report.nbytes / max(1, report.rows)))


def _packed_table(ground: Ground, folder: str) -> SampleTrial:
    where = os.path.join(folder, "parquet")
    report = ground.subject.dataset.write(where, "parquet", shard_size="16MB")
    packed = read_parquet(where)
    return _of_packed(ground, "pack as Parquet", packed, (report.files, report.nbytes / max(1, report.rows)))


def _of_packed(ground: Ground, name: str, packed: Dataset, written: tuple[tuple[str, ...], float]) -> SampleTrial:
    files, row_nbytes = written
    chain = ground.plan.chain(packed)
    flow = steady_flow(chain, ground.plan.share(1.0))
    cold = from_storage(chain, ground.plan.share(0.7), lambda: forget(files))
    now = 0 if ground.subject.rows is None or ground.subject.nbytes is None else ground.subject.nbytes
    note = f"Now it takes {written_size(now)}." if now else ""
    return ground.trial(name, flow, cold, needs_nbytes=ground.total(row_nbytes), note=note)


def _scaled(ground: Ground) -> SampleTrial:
    """JPEGs decoded at 1/2, 1/4 or 1/8: nothing is written, the pixels differ a little."""
    scaled = read_images(list(ground.subject.files), size=ground.plan.size, scaled=True)
    flow = steady_flow(ground.plan.chain(scaled), ground.plan.share(1.0))
    return ground.trial("decode at a smaller scale", flow, note="read_images(scaled=True): slightly different pixels.")


@contextmanager
def _scratch() -> Iterator[str | None]:
    """A temporary folder, or None where there is no room for one."""
    folder = tempfile.mkdtemp(prefix="penstock-bench-")
    try:
        yield folder if shutil.disk_usage(folder).free > _DISK_LEAST else None
    finally:
        storage.close_files()
        shutil.rmtree(folder, ignore_errors=True)
