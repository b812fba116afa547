"""From measurements to a verdict. Nothing here measures: facts in, words out.

Covers: which stage holds the pipeline back, the distance to the machine's limits, what is worth doing.
Does not cover: the measurements (measure.py, limits.py, trials.py).

The analysis is differential. The consumer runs on a batch that is there (synthetic), on a pipeline that reads from
memory (cached) and on one that reads from storage (cold). What the second waits more than the first is preparing:
decoding and the user's function. What the third waits more than the second is fetching.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.bench.facts import Facts, Flow, SampleTrial
from penstock.core.sizes import size

Stage = Literal["storage", "decode", "function", "consumer"]

IDLE_MOST = 0.05
"""A consumer that waits less than this is what the pipeline is waiting for, not the other way round."""

FAR = 5
"""How many times faster than the cores storage must be not to be blamed."""

WORTH = 1.15
"""A change is advised from this gain on: less is within the noise of a busy machine."""


OVERHEAD = 0.5
"""Below this share of what the cores can prepare, batches are too small to be worth their way."""


@dataclass(frozen=True)
class Verdict:
    """What holds the pipeline back, and by how much."""

    bottleneck: Stage
    later: Stage
    """The bottleneck of later epochs, if the data stays in the page cache."""
    stays_cached: bool | None
    """Whether the whole dataset fits into the memory limit; None where its size is unknown."""
    capacities: dict[str, float]
    """Rows a second that each stage allows by itself."""
    fetch_stall_us: float
    """Microseconds of waiting a row that storage causes."""
    prepare_stall_us: float
    """Microseconds of waiting a row that decoding and the function cause."""
    reached: dict[str, float]
    """Share of each limit that the pipeline uses: compute, disk, memcpy."""
    advice: tuple[str, ...]
    database: bool = False
    """Whether storage is a database, which is asked in every epoch."""

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        words = {
            "storage": "The database is the bottleneck: the consumer waits for its rows."
            if self.database
            else "Storage is the bottleneck: the consumer waits for bytes.",
            "decode": "Decoding is the bottleneck: the cores cannot prepare rows as fast as they are used.",
            "function": "Your function is the bottleneck: it takes more of the cores than decoding does.",
            "consumer": "The consumer is the bottleneck: data is there before it is asked for.",
        }
        if self.later == self.bottleneck:
            return words[self.bottleneck]
        epochs = "later epochs, once files are in the page cache" if self.stays_cached is not False else "cached data"
        return f"{words[self.bottleneck]} For {epochs}: {self.later}."


def judge(facts: Facts) -> Verdict:
    """The verdict on a pipeline."""
    caps = capacities(facts)
    prepare = max(0.0, facts.cached.waited_us - facts.synthetic.waited_us)
    fetch = 0.0 if facts.cold is None else max(0.0, facts.cold.waited_us - facts.cached.waited_us)
    later = _bottleneck(facts.cached, 0.0, prepare, caps)
    first = (
        later
        if facts.cold is None
        else _bottleneck(facts.cold, fetch, prepare, caps, caught_up=facts.cached.waited <= IDLE_MOST)
    )
    database = facts.sample.kind == "sql"
    if database:
        later = first  # there is no page cache in which rows would stay
    nbytes = facts.sample.nbytes
    stays = None if nbytes is None else nbytes < facts.limits.memory_nbytes
    return Verdict(
        bottleneck=first, later=later, stays_cached=stays, capacities=caps, fetch_stall_us=fetch,
        prepare_stall_us=prepare, reached=_reached(facts, caps), advice=_advice(facts, first, caps), database=database,
    )  # fmt: skip


def capacities(facts: Facts) -> dict[str, float]:
    """Rows a second that each stage would allow if it were alone; a stage that was not measured is left out."""
    found: dict[str, float] = {}
    sample, limits = facts.sample, facts.limits
    if limits.read_cold and sample.row_stored:
        found["storage"] = limits.read_cold / sample.row_stored
    found["decode"] = max(facts.decode, 1e-9)
    if facts.function is not None:
        found["function"] = max(facts.function, 1e-9)
    found["prepare"] = 1 / sum(1 / found[name] for name in ("decode", "function") if name in found)
    if sample.step_s > 0:
        found["consumer"] = sample.batch / sample.step_s
    return found


def _bottleneck(
    flow: Flow, fetch_us: float, prepare_us: float, caps: dict[str, float], *, caught_up: bool = False
) -> Stage:
    if flow.waited <= IDLE_MOST:
        return "consumer"
    # Bytes that come late also hold up decoding. Where the cores lag behind even on cached files, and storage by itself
    # is far faster than they are, a faster disk would not help.
    late = prepare_us > 0 and caps.get("storage", 0.0) >= FAR * caps["prepare"] and not caught_up
    if fetch_us > prepare_us and not late:
        return "storage"
    slower = "function" in caps and caps["function"] < caps["decode"]
    return "function" if slower else "decode"


def _reached(facts: Facts, caps: dict[str, float]) -> dict[str, float]:
    """How much of what the machine can do the free-running pipeline gets out of it."""
    rate, sample, limits = facts.free.rate, facts.sample, facts.limits
    # Decoding alone was measured at another moment than the pipeline: more than all of it is all of it.
    found = {"compute": min(1.0, rate / caps["prepare"]), "memcpy": rate * sample.row_nbytes / limits.memcpy}
    if "storage" in caps:
        found["disk"] = rate / caps["storage"]
    return found


def _advice(facts: Facts, bottleneck: Stage, caps: dict[str, float]) -> tuple[str, ...]:
    """What the trials say, the largest gain first; nothing is advised that was not tried."""
    if bottleneck == "consumer":
        return ("Nothing on the data side would make this consumer faster.",)
    useful = [t for t in facts.trials if _gain(t, bottleneck) >= WORTH]
    said = [describe(t) for t in sorted(useful, key=lambda t: -_gain(t, bottleneck)) if t.fits]
    said += [f"{describe(t)} It does not fit here." for t in useful if not t.fits]
    share = facts.free.rate / caps["prepare"]
    if bottleneck != "storage" and share < OVERHEAD:
        said.append(
            f"The pipeline reaches {share:.0%} of what the cores could prepare: the way of a batch costs more than "
            "what is in it. A larger batch would help."
        )
    if said:
        return tuple(said)
    if facts.trials:
        return (f"None of the changes that were tried gained {WORTH - 1:.0%} or more.",)
    return ()


def _gain(trial: SampleTrial, bottleneck: Stage) -> float:
    """What counts: against reading from storage where that is the bottleneck."""
    if bottleneck == "storage" and trial.gain_cold is not None:
        return trial.gain_cold
    return trial.gain or 0.0


def describe(trial: SampleTrial) -> str:
    """One trial in a sentence."""
    if trial.warm is None:
        return f"{trial.name}: not tried: {trial.note}."
    needs = "" if trial.needs_nbytes is None else f", needs {size(trial.needs_nbytes)} for the whole dataset"
    cold = "" if trial.gain_cold is None else f" ({trial.gain_cold:.2f}x when files are not in memory)"
    note = f" {trial.note}" if trial.note else ""
    return f"{trial.name}: {trial.warm:,.0f} rows/s, {trial.gain or 0:.2f}x{cold}{needs}.{note}"
