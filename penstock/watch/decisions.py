"""What penstock decided, as sentences.

Covers: one sentence and a weight for each kind of event on the timeline; unknown kinds are shown as they are.
Does not cover: what should be done about it (advice.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from penstock.core.sizes import size
from penstock.watch.run_folder import Record

Weight = Literal["note", "good", "warn", "bad"]

LONGEST_TEXT = 300


@dataclass(frozen=True, slots=True)
class TimelineMark:
    """One mark on the timeline. `at_s` counts from the run's start."""

    at_s: float
    kind: str
    text: str
    weight: Weight


def describe(record: Record) -> tuple[str, Weight]:
    """A sentence about an event and how much it matters. Never raises, whatever the event holds."""
    kind = record["kind"]
    teller = _TELLERS.get(kind)
    try:
        text = teller(record) if teller is not None else _plainly(record)
    except (KeyError, TypeError, ValueError):  # written by another version
        text = _plainly(record)
    return text[:LONGEST_TEXT], _weight(record)


def _weight(record: Record) -> Weight:
    kind = record["kind"]
    if kind == "run.end":
        return "good" if record.get("status") == "finished" else "bad"
    if kind.startswith("watchdog.") and kind != "watchdog.budget":
        return "warn" if record.get("down", True) else "good"
    return _WEIGHTS.get(kind, "warn" if kind.endswith(("failed", "damaged", "skipped", "leaked")) else "note")


def _plainly(record: Record) -> str:
    """An event without a sentence of its own: its values, as they are."""
    values = [f"{name} {value(item)}" for name, item in record.items() if name not in ("t", "kind", "who")]
    who = str(record.get("who", ""))
    return who + (": " if who and values else "") + ", ".join(values)


def value(item: Any) -> str:
    """A value for people: short numbers, no quotes."""
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, float):
        return f"{item:.4g}"
    if isinstance(item, dict):
        return ", ".join(f"{name} {value(inner)}" for name, inner in item.items())
    return str(item)


def _because(record: Record) -> str:
    why = record.get("why") or record.get("reason")
    return f": {why}" if why else ""


def _threads(record: Record) -> str:
    return f"Reading threads {record['before']} → {record['threads']}{_because(record)}"


def _workers(record: Record) -> str:
    place = "worker processes" if record["workers"] == "process" else "threads"
    return f"{record['who']} runs in {place}{_because(record)}"


def _budget(record: Record) -> str:
    verb = "shrinks" if record["total"] < record["before"] else "grows"
    return (
        f"The data budget {verb} from {size(record['before'])} to {size(record['total'])}: "
        f"{size(record['measured'])} of {size(record['limit'])} in use"
    )


def _rung(record: Record) -> str:
    step = record["kind"].partition(".")[2].replace("_", " ")
    share = record["measured"] / record["limit"]
    return f"{'Retreat' if record['down'] else 'Return'}: {step}, at {share:.0%} of the limit"


def _oom(record: Record) -> str:
    return f"{record['rows']} rows did not fit in memory ({record['phase']})"


def _forecast(record: Record) -> str:
    verdict = "A batch fits" if record["fits"] else "A whole batch does not fit"
    return f"Forecast: {verdict}, with a peak of {size(record['peak_nbytes'])} of {size(record['limit_nbytes'])}"


def _micro(record: Record) -> str:
    return f"Micro-batches of {record['micro']} from now on{_because(record)}"


def _death(record: Record) -> str:
    sure = "" if record.get("confirmed", True) else " (probably)"
    ranks = [str(rank) for rank in record.get("ranks") or []]
    who = f"Rank {' and '.join(ranks)}" if ranks else "The training process"
    return f"{who} died{sure}: {record.get('why') or record.get('signal')}"


def _restart(record: Record) -> str:
    micro = f" with micro-batches of {record['micro']}" if record.get("micro") else ""
    attempt = f"Attempt {record['attempt']} begins" if record.get("attempt") else "The run goes on"
    return f"{attempt}{micro}{_because(record)}"


def _start(record: Record) -> str:
    return "The run starts" if record.get("attempt", 1) == 1 else f"Attempt {record['attempt']} starts"


def _end(record: Record) -> str:
    return f"The run {record['status']}" + (f": {record['error']}" if record.get("error") else "")


def _resume(record: Record) -> str:
    if not record.get("found"):
        return "No checkpoint yet: the run begins at the first batch"
    return f"Resumed at epoch {record['epoch'] + 1}, batch {record['step']}"


def _mixes(record: Record) -> str:
    if record["exact"]:
        return f"The shuffle of {record['who']} is uniformly random (coverage 1.00): {record['how']}"
    return (
        f"The shuffle of {record['who']} mixes with coverage {record['coverage']:.2f}, in the worst tenth of an epoch "
        f"{record['worst_tenth']:.2f} (uniform 1): {record['how']}. {record['sentence']}"
    )


def _rows_written(record: Record) -> str:
    return (
        f"Rows are written to disk in random order: {size(record['nbytes'])} of about {size(record['whole_nbytes'])}, "
        f"about {record['left_s']:.0f} s left"
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


_TELLERS: dict[str, Callable[[Record], str]] = {
    "tune.threads": _threads,
    "tune.workers": _workers,
    "fallback": lambda r: f"A slower way, {r['count']} so far: {r['who']}{_because(r)}",
    "data.skipped": lambda r: _sentence(str(r["text"])),
    "watchdog.budget": _budget,
    "guard.oom": _oom,
    "guard.resume": _resume,
    "guard.restart": _restart,
    "guard.saved": lambda r: f"Checkpoint at step {r['step']}, {size(r['nbytes'])}",
    "guard.smaller": _micro,
    "guard.again": lambda r: f"The same step is tried again{_because(r)}",
    "guard.larger": _micro,
    "guard.precision": lambda r: f"Half precision from now on{_because(r)}",
    "guard.remat": lambda r: f"Activations are computed again instead of kept{_because(r)}",
    "guard.rehearsed": lambda r: f"A first step was rehearsed; micro-batches of {r['micro']}",
    "guard.stopped": lambda r: f"Stopped at epoch {r['epoch'] + 1}, batch {r['step']}, as asked",
    "cache.full": lambda r: f"The cache keeps what it has and takes no more{_because(r)}",
    "cache.dropped": lambda r: f"The cache gave {size(r['nbytes'])} back to the model",
    "budget.overdraft": lambda r: f"{r['who']} had to take {size(r['nbytes'])} beyond the data budget",
    "shuffle.mixes": _mixes,
    "shuffle.weak": lambda r: f"The shuffle of {r['who']} mixes badly: coverage {r['coverage']:.2f} (uniform 1)",
    "rowstore.began": lambda r: f"A row store of {r['who']} is written to {r['folder']}; the first batch waits for it",
    "rowstore.written": _rows_written,
    "rowstore.waiting": lambda r: f"Another process writes the row store of {r['who']}; this one waits for it",
    "rowstore.complete": lambda r: f"Row store of {r['rows']:,} rows, {size(r['nbytes'])}, in {r['folder']}",
    "rowstore.refused": lambda r: f"No row store{_because(r)}",
    "train.sorted": lambda r: f"The rows are sorted or clustered by the target {r['who']!r}; training mixes them",
    "train.sorted_by": lambda r: f"The rows are sorted or clustered by {', '.join(r['columns'])}; training mixes them",
    "run.start": _start,
    "run.death": _death,
    "run.restart": _restart,
    "run.end": _end,
    "run.ended": lambda r: f"A pass over the data ended: {r['rows']:,} rows in {r['wall_s']:.1f} s",
    "forecast.done": _forecast,
    "forecast.probe": lambda r: f"Tried {r['rows']} rows in {r['setting']}: a peak of {size(r['peak_nbytes'])}",
    "guard.set_aside": lambda r: f"{r['checkpoints']} checkpoints of an earlier run were set aside",
    "guard.skipping": lambda r: f"{r['batches']} batches are passed over, to go on where the run was",
    "guard.save_failed": lambda r: f"A checkpoint could not be written: {r['error']}",
    "guard.save_streamed": lambda r: f"Checkpoints are written piece by piece{_because(r)}",
    "guard.worst_batch": lambda r: f"The largest of {r['looked']} batches is rehearsed",
    "train.prepared": lambda r: f"The data was prepared in {r['seconds']:.1f} s: {r['text']}",
    "train.data": lambda r: f"{r['train_rows']:,} rows to train on, {r['steps']:,} steps an epoch",
    "train.loaded": lambda r: f"{r['who']} was loaded in {r['seconds']:.1f} s",
    "train.begin": lambda r: "Training goes on" if r.get("resumed") else "Training begins",
    "train.end": lambda r: "Training was stopped" if r.get("stopped") else "Training is complete",
    "record.thinned": lambda r: f"Events left out of the record, because they came too fast: {value(r['kinds'])}",
} | {f"watchdog.{rung}": _rung for rung in ("read_ahead", "idle_buffers", "garbage", "cache", "workers", "allocator")}

_WEIGHTS: dict[str, Weight] = {
    "guard.oom": "bad",
    "run.death": "bad",
    "run.restart": "warn",
    "fallback": "warn",
    "guard.restart": "warn",
    "guard.stopped": "warn",
    "guard.checkpoint_bad": "warn",
    "guard.save_failed": "bad",
    "guard.smaller": "warn",
    "guard.precision": "warn",
    "guard.remat": "warn",
    "guard.larger": "good",
    "shuffle.weak": "warn",
    "rowstore.refused": "warn",
    "cache.dropped": "warn",
    "cache.refused": "warn",
    "cache.unusable": "warn",
    "budget.overdraft": "warn",
    "train.begin": "good",
    "train.end": "good",
    "run.start": "good",
}
