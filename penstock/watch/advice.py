"""What limited the run, and what would help: pure functions from facts to sentences.

Covers: the bottleneck (data, model, neither), memory, restarts, the loss; each piece of advice gives its numbers.
Does not cover: gathering the facts (digest.py), causes of a failure in depth (doctor/).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.core.sizes import size
from penstock.watch.decisions import Weight
from penstock.watch.digest import Digest, whole
from penstock.watch.series import Bucket

WAITS_MUCH = 0.25
WAITS_LITTLE = 0.05
CLOSE = 0.93
ROOMY = 0.5
UNACCOUNTED = "not accounted for"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the advice rests on. None where nothing was measured."""

    waited_share: float | None = None
    trained_s: float = 0.0
    peak_nbytes: int = 0
    limit_nbytes: int = 0
    speeds: tuple[float, float] | None = None
    """Samples a second in the first and in the last third of the run."""
    unaccounted: tuple[int, int] | None = None
    """Unaccounted memory, at the end of the run's first third and at its end."""
    micro: int | None = None
    batch: int | None = None
    deaths: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    not_finite: dict[str, int | None] = field(default_factory=dict)
    val_loss: tuple[float, int, float, int] | None = None
    """Best value and its epoch, last value and its epoch."""
    holders: dict[str, int] = field(default_factory=dict)
    status: str = "running"
    error: str = ""


@dataclass(frozen=True, slots=True)
class Advice:
    """A finding in a few words, and a sentence about what to do."""

    title: str
    text: str
    weight: Weight


def gather(digest: Digest) -> RunFacts:
    """The facts of a run."""
    config = digest.start.get("config")
    batch = config.get("batch") if isinstance(config, dict) else None
    return RunFacts(
        waited_share=digest.waited_s / digest.trained_s if digest.trained_s > 0 else None,
        trained_s=digest.trained_s,
        peak_nbytes=digest.peak_nbytes,
        limit_nbytes=digest.memory.get("limit_nbytes") or whole(digest.start.get("limit_nbytes")) or 0,
        speeds=_thirds(digest.grid.numbers.get("samples_per_s", {})),
        unaccounted=_unaccounted(digest),
        micro=whole(digest.progress.get("micro")),
        batch=whole(batch),
        deaths=digest.deaths,
        kinds=digest.kinds,
        not_finite=digest.first_not_finite,
        val_loss=_best_and_last(digest, "val_loss"),
        holders=digest.memory.get("holders", {}),
        status=digest.status,
        error=digest.error,
    )


def advise(facts: RunFacts) -> list[Advice]:
    """Findings and what to do about them, the gravest first."""
    order = {"bad": 0, "warn": 1, "note": 2, "good": 3}
    found = [*_ending(facts), *_loss(facts), *_memory(facts), *_growth(facts), *_flow(facts), *_speed(facts)]
    found += [*_micro(facts), *_cache(facts)]
    return sorted(found, key=lambda advice: order[advice.weight])


def bottleneck(facts: RunFacts) -> str:
    """One sentence: what the run spent its time on."""
    share = facts.waited_share
    if share is None:
        return "Not known yet: no training step was recorded."
    if share >= WAITS_MUCH:
        return f"The data: the model waited for it {share:.0%} of the time."
    if share <= WAITS_LITTLE:
        return f"The model: data was ready when it was asked for; it waited {share:.1%} of the time."
    return f"Mostly the model: it waited for data {share:.0%} of the time."


def _ending(facts: RunFacts) -> Iterator[Advice]:
    if facts.status in ("failed", "dead"):
        yield Advice("The run failed", facts.error or "It ended without a reason that was recorded.", "bad")
    if facts.status == "interrupted":
        yield Advice("The run was interrupted", "`penstock train --resume` goes on at the next batch.", "warn")
    if facts.deaths:
        times = "once" if facts.deaths == 1 else f"{facts.deaths} times"
        yield Advice(
            f"The training process died {times}",
            "It went on from its last checkpoint. A smaller `--batch`, or a higher `--memory`, avoids the detour.",
            "warn",
        )


def _loss(facts: RunFacts) -> Iterator[Advice]:
    for name, step in facts.not_finite.items():
        where = "" if step is None else f" at step {step:,}"
        yield Advice(
            f"{name} became NaN or infinite{where}",
            "Lower the learning rate, clip gradients, or train in float32; look for missing values in the data.",
            "bad",
        )
    if facts.val_loss is not None:
        best, best_epoch, last, last_epoch = facts.val_loss
        if last_epoch - best_epoch >= 2 and last > best + 0.05 * abs(best):
            yield Advice(
                "The validation loss rises",
                f"It was lowest in epoch {best_epoch + 1} ({best:.4g}) and is {last:.4g} now: fewer epochs, or more "
                "regularisation, would give the same or a better model.",
                "warn",
            )


def _memory(facts: RunFacts) -> Iterator[Advice]:
    if not facts.limit_nbytes or not facts.peak_nbytes:
        return
    share = facts.peak_nbytes / facts.limit_nbytes
    numbers = f"The peak was {size(facts.peak_nbytes)} of {size(facts.limit_nbytes)} ({share:.0%})."
    if share > 1:
        yield Advice("More memory than the limit was in use", f"{numbers} {_largest(facts)}", "bad")
    elif share > CLOSE:
        yield Advice("Memory came close to the limit", f"{numbers} {_largest(facts)}", "warn")
    elif share < ROOMY and facts.trained_s > 0:
        yield Advice(
            "There is room in memory",
            f"{numbers} A larger `--batch` or shuffle window, or a RAM cache, would use it.",
            "note",
        )


def _largest(facts: RunFacts) -> str:
    named = {name: n for name, n in facts.holders.items() if name != UNACCOUNTED}
    if not named:
        return ""
    name = max(named, key=lambda holder: named[holder])
    return f"The largest holder by name is {name}, {size(named[name])}."


def _growth(facts: RunFacts) -> Iterator[Advice]:
    if facts.unaccounted is None or not facts.limit_nbytes:
        return
    before, after = facts.unaccounted
    if after - before > 0.1 * facts.limit_nbytes and after > 1.25 * before:
        yield Advice(
            "Unaccounted memory keeps growing",
            f"From {size(before)} to {size(after)} in the last two thirds of the run: something outside the data "
            "pipe, for example a list of losses or outputs that keeps tensors alive, holds on to it.",
            "warn",
        )


def _flow(facts: RunFacts) -> Iterator[Advice]:
    share = facts.waited_share
    if share is None:
        return
    if share >= WAITS_MUCH:
        yield Advice(
            "The model waits for data",
            f"{share:.0%} of the training time. Cheaper decoding (a smaller `size=`), `.cache()`, packing small files "
            "with `penstock pack`, or more cores would help; a larger model costs nothing extra until then.",
            "warn",
        )
    elif share <= WAITS_LITTLE:
        yield Advice(
            "Data keeps up with the model",
            f"The model waited {share:.1%} of the time: faster storage or more reading threads would change nothing.",
            "good",
        )


def _speed(facts: RunFacts) -> Iterator[Advice]:
    if facts.speeds is None:
        return
    before, after = facts.speeds
    if before > 0 and after < 0.7 * before:
        yield Advice(
            "The run became slower",
            f"From {before:,.0f} to {after:,.0f} samples a second. The timeline shows what changed: a retreat of the "
            "watchdog, smaller micro-batches, or another job on the machine.",
            "warn",
        )


def _micro(facts: RunFacts) -> Iterator[Advice]:
    if facts.kinds.get("guard.oom"):
        times = "once" if facts.kinds["guard.oom"] == 1 else f"{facts.kinds['guard.oom']} times"
        now = f", and runs with micro-batches of {facts.micro} now" if facts.micro else ""
        yield Advice(
            "A batch did not fit, and was split",
            f"It happened {times}; the guard split the batch{now}. The result is the same as with whole batches.",
            "note",
        )


def _cache(facts: RunFacts) -> Iterator[Advice]:
    if facts.kinds.get("cache.dropped") or facts.kinds.get("cache.full"):
        yield Advice(
            "The cache did not fit in memory",
            "`.cache(folder)` keeps it on disk, where the limit does not count.",
            "note",
        )


def _best_and_last(digest: Digest, name: str) -> tuple[float, int, float, int] | None:
    last = next((epoch for epoch in reversed(digest.epochs) if name in (epoch.get("logs") or {})), None)
    if last is None or name not in digest.best:
        return None
    value = last["logs"][name]
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return (*digest.best[name], float(value), last["epoch"])


def _thirds(series: dict[int, Bucket]) -> tuple[float, float] | None:
    """The averages of the first and the last third; the very first bucket, which holds the warm-up, is left out."""
    buckets = [series[index] for index in sorted(series)][1:]
    third = len(buckets) // 3
    if third < 3:
        return None

    def average(part: list[Bucket]) -> float:
        return sum(b.total for b in part) / sum(b.count for b in part)

    return average(buckets[:third]), average(buckets[-third:])


def _unaccounted(digest: Digest) -> tuple[int, int] | None:
    samples = [digest.grid.memory[index].holders.get(UNACCOUNTED, 0) for index in sorted(digest.grid.memory)]
    if len(samples) < 12:
        return None
    return samples[len(samples) // 3], samples[-1]
