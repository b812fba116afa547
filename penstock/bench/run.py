"""All measurements of one dataset, in order.

Covers: sampling, the machine's limits, the three runs of the stall analysis, the function alone, trials.
Does not cover: each of them (limits.py, measure.py, trials.py), judging (verdict.py).
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.bench import limits
from penstock.bench.chain import BenchPlan
from penstock.bench.database import at_hand, stream_rate
from penstock.bench.facts import Facts, Flow, Limits, MeasuredSample, SampleTrial
from penstock.bench.measure import fill, from_storage, nbytes_of_batch, rows_of_batch, steady_flow, synthetic
from penstock.bench.sample import SAMPLE_NBYTES, SAMPLE_OF, BenchSubject, SampledUnits, subject_of
from penstock.bench.trials import TRIAL_NBYTES, ground_of, run_trials
from penstock.core.errors import NotFound
from penstock.core.tree import flatten
from penstock.dataset import Dataset
from penstock.engine.pipe import cores
from penstock.memory import current_limit
from penstock.plan.steps import function_name
from penstock.read import read_tfrecords
from penstock.read.recognise.formats import kind_of, open_any
from penstock.sources.sql.source import SqlSource
from penstock.sources.storage import files as storage
from penstock.write.columns import stored_kind

Say = Callable[[str], None]
"""Called with what is being measured now."""

DEFAULT_SIDE = 224
_FEW_BATCHES = 8
_PATIENCE_S = 60
"""Trials are left out when measuring took so much longer than was asked for."""
_SLICED = 1024
"""Rows a block where a function is measured: it may take a millisecond a row, and a block of a table has 50,000."""


def bench(plan: BenchPlan, say: Say = lambda what: None) -> Facts:
    """Measure a dataset. Takes about `plan.seconds`, and some more to open it and for trials."""
    logger = logging.getLogger("penstock")
    logger.addFilter(_of_whole_data)
    try:
        return _measured(plan, say)
    finally:
        logger.removeFilter(_of_whole_data)


def _of_whole_data(record: logging.LogRecord) -> bool:
    """Whether a warning is about the user's data: how well a small sample can be shuffled says nothing about it."""
    return not any(str(value).startswith(SAMPLE_OF) for value in record.args or ())


def _measured(plan: BenchPlan, say: Say) -> Facts:
    notes, began = _busy(), time.monotonic()
    say("looking at the data")
    dataset, plan = _opened(plan, notes)
    name = name_of(dataset, plan.path)
    subject = subject_of(dataset, name, SAMPLE_NBYTES, rows=_SLICED if plan.function else None)
    chain = plan.chain(subject.dataset)
    batch = _first_batch(chain, name)
    machine = _limits(subject, plan, say)
    if machine.read_cold is None and not subject.database:
        notes.append("The files stay in memory whatever is asked, so reading from storage was not measured.")
    say("the consumer alone")
    alone = synthetic(batch, plan.share(1.0), plan.step_s)
    row_nbytes = nbytes_of_batch(batch) / max(1, rows_of_batch(batch))
    del batch
    with at_hand(subject) as (there, source):
        say("decoding alone")
        decode = limits.decode_rate(source, plan.share(1.5))
        flows = _flows(subject, there, plan, machine, say)
    facts = Facts(
        sample=_sample(subject, plan, name, row_nbytes, flows["free"]), limits=machine, synthetic=alone,
        cached=_there(flows["cached"]), cold=flows["cold"], free=_there(flows["free"]), free_cold=flows["free_cold"],
        decode=decode,
    )  # fmt: skip
    if time.monotonic() - began > _PATIENCE_S + 2 * plan.seconds:
        notes.append(
            "Batches take so long here that there was no time for trials. Give more --seconds or a smaller batch."
        )
        plan = replace(plan, trials=False)
    trials, function = _tried(plan, dataset, name, row_nbytes, say)
    if machine.read_cold is not None and facts.cold is None and not subject.database:
        notes.append(
            "The data is so little that it is read before the first batch is used: cold files were not measured."
        )
    return replace(facts, function=function, trials=tuple(trials), notes=tuple(notes))


def _opened(plan: BenchPlan, notes: list[str]) -> tuple[Dataset, BenchPlan]:
    """The dataset, with pictures decoded to one size: batches need that."""
    dataset = open_any(plan.path, size=plan.size, query=plan.query)
    kind = kind_of(plan.path)
    blobs = kind in ("tfrecord", "sql")
    stored = [n for n, v in flatten(dataset.peek())[1].items() if stored_kind(v) is not None] if blobs else []
    ragged = any(f.dtype == np.uint8 and len(f.shape) == 3 and not f.fixed for f in dataset.schema)
    if not stored and not ragged:
        return dataset, plan
    if plan.size is None:
        plan = replace(plan, size=DEFAULT_SIDE)
        notes.append(f"Images were resized to {DEFAULT_SIDE} x {DEFAULT_SIDE}; give --size for another size.")
    if stored and kind == "sql":
        pixels = {stored[0]: {"size": (plan.size, plan.size)}}
        return open_any(plan.path, query=plan.query, images=pixels), plan
    if stored:
        return read_tfrecords(plan.path, images=stored[0], size=plan.size), plan
    return open_any(plan.path, size=plan.size), plan


def name_of(dataset: Dataset, path: str) -> str:
    """What was asked for, in words that may be shown: an address may have a password in it."""
    source = getattr(dataset.node.step, "source", None)
    return source.database.name if isinstance(source, SqlSource) else path


def _busy() -> list[str]:
    load = os.getloadavg()[0]
    if load < 0.75 * cores():
        return []
    return [f"Others were using this machine (load {load:.1f} on {cores()} cores): alone it would be faster."]


def _first_batch(chain: Any, path: str) -> Any:
    with iter(chain) as batches:
        for batch in batches:
            return batch
    raise NotFound(f"{path!r} holds no rows.")


def _limits(subject: BenchSubject, plan: BenchPlan, say: Say) -> Limits:
    say("copying memory")
    copied = limits.copy_rate(min(0.2, plan.share(0.2)))
    if isinstance(subject.source, SampledUnits) and isinstance(subject.source.source, SqlSource):
        say("streaming from the database")
        given = stream_rate(subject.source.source, subject.source.units, plan.share(1.5))
        return Limits(cores(), copied, given, None, current_limit().nbytes)
    say("reading the files from storage")
    cold = limits.read_rate(subject.files, plan.share(1.5)) if limits.forget(subject.files) else None
    say("reading the files from memory")
    _read_all(subject, plan)
    warm = limits.read_rate(subject.files, plan.share(0.5))
    return Limits(cores(), copied, cold, warm, current_limit().nbytes)


def _read_all(subject: BenchSubject, plan: BenchPlan) -> None:
    """Put into memory what the warm measurement is going to read."""
    limits.read_rate(subject.files, plan.share(1.5))


def _flows(subject: BenchSubject, there: Dataset, plan: BenchPlan, machine: Limits, say: Say) -> dict[str, Flow | None]:
    chain, near = plan.chain(subject.dataset), plan.chain(there)
    found: dict[str, Flow | None] = {"cold": None, "free_cold": None}
    if subject.database:
        say("the pipeline alone, rows from the database")
        found["free_cold"] = steady_flow(chain, plan.share(1.5))
        say("the pipeline and a consumer, rows from the database")
        found["cold"] = steady_flow(chain, plan.share(2.0), plan.step_s)
    elif machine.read_cold is not None and _batches(subject, plan) >= _FEW_BATCHES:
        say("the pipeline alone, files on storage")
        found["free_cold"] = from_storage(chain, plan.share(1.5), lambda: limits.forget(subject.files))
    if found["free_cold"] is not None and not subject.database:
        say("the pipeline and a consumer, files on storage")
        found["cold"] = from_storage(chain, plan.share(2.0), lambda: limits.forget(subject.files), plan.step_s)
    say("the pipeline alone, bytes at hand")
    found["free"] = steady_flow(near, plan.share(2.0))
    say("the pipeline and a consumer, bytes at hand")
    found["cached"] = steady_flow(near, plan.share(2.0), plan.step_s)
    return found


def _there(flow: Flow | None) -> Flow:
    assert flow is not None
    return flow


def _batches(subject: BenchSubject, plan: BenchPlan) -> float:
    rows = subject.source.num_rows()
    return math.inf if rows is None else rows / plan.batch


def _sample(subject: BenchSubject, plan: BenchPlan, name: str, row_nbytes: float, free: Flow | None) -> MeasuredSample:
    return MeasuredSample(
        source=name, kind=kind_of(plan.path), rows=subject.rows, nbytes=subject.nbytes,
        row_stored=subject.row_stored, row_nbytes=row_nbytes,
        sample_rows=subject.source.num_rows() or (0 if free is None else free.rows), batch=plan.batch,
        step_s=plan.step_s, function="" if plan.function is None else function_name(plan.function),
    )  # fmt: skip


def _tried(
    plan: BenchPlan, dataset: Any, name: str, row_nbytes: float, say: Say
) -> tuple[list[SampleTrial], float | None]:
    """Trials on a smaller sample, and what the user's function allows by itself."""
    if not plan.trials and plan.function is None:
        return [], None
    small = subject_of(dataset, name, TRIAL_NBYTES, rows=_SLICED if plan.function else None)
    function = None
    if plan.function is not None:
        say("your function alone")
        function = _function_rate(plan, small)
    if not plan.trials:
        return [], function
    say("the sample for trials")
    ground = ground_of(plan, small, row_nbytes)
    found = run_trials(ground, lambda what: say(f"trying: {what}"))
    storage.close_files()
    return found, function


def _function_rate(plan: BenchPlan, subject: BenchSubject) -> float:
    """Rows a second of the function on samples that are in memory: with it less without it."""
    kept = subject.dataset.cache()
    plain, mapped = plan.chain(kept, function=False), plan.chain(kept)
    fill(plain)
    without, together = steady_flow(plain, plan.share(0.7)), steady_flow(mapped, plan.share(1.0))
    extra_s = 1 / max(together.rate, 1e-9) - 1 / max(without.rate, 1e-9)
    return 1 / max(extra_s, 1e-9)
