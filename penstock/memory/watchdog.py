"""Data gives way to the model: the budget follows measured memory, and a ladder of retreats stands behind it.

Covers: how large the data budget should be, when to take a step down or up the ladder, and the thread that asks.
Does not cover: what a step does (the engine and the guard hand in their rungs), measuring (meter.py).

`decide` is pure: facts and a state in, a state and actions out. Time is counted in samples. The two bands do not
touch (step down above `high`, up only below `low`, after a long calm), so that a step does not undo itself.

Bytes that are leased and not yet filled would make other memory look smaller than it is: a reader marks them with
`Lease.filling()`. For readers that do not, the budget never grows beyond its ceiling, by default what was planned
before the first lease, growth credits only leases that were out all along, and the reserve must cover the others.

The thread needs the interpreter lock like any other. Where threads fill memory while holding that lock it comes late,
so they check memory themselves between two rows (between_rows.py). Samples come more often close to the limit and while
memory grows towards it; most are glances, which take three system calls.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from penstock.core.errors import InvalidInput, TooLarge
from penstock.core.events import events
from penstock.core.sizes import size
from penstock.memory.budget import PROCESSES, Budget
from penstock.memory.limits import current_reserve
from penstock.memory.meter import Meter
from penstock.memory.verdict import CLOSE_S, LAST, RECENT_SAMPLES, Growth, GrowthSample

SAMPLE_S = 0.1
WHOLE_S = 1.0
"""How often limits are looked up again and memory is measured in full: some forty small files."""
WARN_AGAIN_S = 60.0
"""How long a warning counts."""
MIN_DATA_NBYTES = 32_000_000
"""The smallest data budget: a few blocks and a batch. Below it a run is refused instead of crawling."""
RESERVE_SHARE = 0.2
"""Share of the limit kept free for the model's growth: gradients, optimizer state, a longer batch."""


def _nothing() -> None:
    """Stand in for a step that has no way back."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One way to need less memory. `down` takes the step, `up` takes it back.

    `frees_data`: it gives leases back, so it is also taken when the budget stays overdrawn. `above`: it is too hard a
    measure below this share of the limit.
    """

    name: str
    down: Callable[[], None]
    up: Callable[[], None] = _nothing
    frees_data: bool = False
    above: float = 0.0


@dataclass(frozen=True, slots=True)
class Rules:
    """When to act: shares of the limit, and patience in samples."""

    high: float = 0.90
    low: float = 0.75
    critical: float = 0.97
    slack: float = 0.01  # changes of the budget below this share of the limit are noise
    settle_samples: int = 5  # a step needs time to show
    overdrawn_samples: int = 20  # leases need time to come back
    grow_samples: int = 20
    up_samples: int = 50


@dataclass(frozen=True, slots=True)
class MemorySample:
    """What is measured at one sample, in bytes."""

    limit: int
    measured: int
    leased: int
    total: int  # of the budget
    reserve: int
    floor: int = MIN_DATA_NBYTES
    ceiling: int | None = None
    filling: int = 0  # leased, and not there yet

    @property
    def other(self) -> int:
        """What is in use and is not data."""
        return max(0, self.measured - max(0, self.leased - self.filling))

    @property
    def target(self) -> int:
        """How large the data budget should be by these facts alone."""
        target = max(self.floor, self.limit - self.other - self.reserve)
        return target if self.ceiling is None else min(target, self.ceiling)


@dataclass(frozen=True, slots=True)
class State:
    """What is remembered between samples: the rungs taken and how long things have been as they are."""

    level: int = 0
    since_step: int = 1_000_000
    calm: int = 0
    overdrawn: int = 0
    roomy: int = 0
    most_measured: int = 0  # while there was room
    least_leased: int = 0


@dataclass(frozen=True, slots=True)
class Resize:
    """Set the budget's total."""

    total: int


@dataclass(frozen=True, slots=True)
class RungMove:
    """Take rung number `rung` down, or back up."""

    rung: int
    down: bool


Action = Resize | RungMove


def plan_budget(limit_nbytes: int, used_nbytes: int, reserve: int | None = None) -> int:
    """Choose the data budget at the start: what the limit leaves beside memory in use and the reserve.

    The reserve gives way before the smallest data budget does; raises TooLarge if the limit leaves less than that.
    """
    room = limit_nbytes - used_nbytes
    if room < MIN_DATA_NBYTES:
        raise TooLarge(
            who=f"With {size(used_nbytes)} already in use under a limit of {size(limit_nbytes)}, the least data pipe",
            nbytes=MIN_DATA_NBYTES,
            limit=room,
            change="Make the model or what is loaded beside it smaller",
        )
    return max(MIN_DATA_NBYTES, room - default_reserve(limit_nbytes, reserve))


def default_reserve(limit_nbytes: int, reserve: int | None = None) -> int:
    """The bytes kept free for the model's growth: those given, those the user set, or a share of the limit."""
    chosen = current_reserve() if reserve is None else reserve
    return int(limit_nbytes * RESERVE_SHARE) if chosen is None else chosen


def decide(
    facts: MemorySample, state: State, ladder: Sequence[Rung] = (), rules: Rules | None = None, *, hurry: bool = False
) -> tuple[State, tuple[Action, ...]]:
    """Choose what to do at one sample. In a `hurry`, when memory grows fast, the low mark is the critical one."""
    rules = rules or Rules()
    rules = replace(rules, critical=min(rules.critical, rules.low)) if hurry else rules
    state, resize = _resize(facts, state, rules)
    state, step = _step(facts, state, ladder, rules)
    return state, tuple(action for action in (resize, step) if action is not None)


def _resize(facts: MemorySample, state: State, rules: Rules) -> tuple[State, Resize | None]:
    """Shrink at once, grow by half the room that was there throughout a calm while."""
    slack = int(facts.limit * rules.slack)
    if facts.target < facts.total - slack or facts.total > facts.target == facts.floor:
        return replace(state, roomy=0), Resize(facts.target)
    if facts.target <= facts.total + slack:
        return replace(state, roomy=0), None
    if state.roomy:
        most, least = max(state.most_measured, facts.measured), min(state.least_leased, facts.leased)
    else:
        most, least = facts.measured, facts.leased
    if state.roomy + 1 < rules.grow_samples:
        return replace(state, roomy=state.roomy + 1, most_measured=most, least_leased=least), None
    gap = replace(facts, measured=most, leased=least).target - facts.total
    if gap <= slack:
        return replace(state, roomy=0), None
    return replace(state, roomy=0), Resize(facts.total + (gap if gap <= 4 * slack else gap // 2))


def _step(facts: MemorySample, state: State, ladder: Sequence[Rung], rules: Rules) -> tuple[State, RungMove | None]:
    """Step down under pressure, one rung at a time with time to settle; step up after a long calm."""
    pressure = facts.measured / facts.limit
    state = replace(
        state,
        since_step=state.since_step + 1,
        calm=state.calm + 1 if pressure < rules.low and facts.leased <= facts.total else 0,
        overdrawn=state.overdrawn + 1 if facts.leased > facts.total else 0,
    )
    if state.level < len(ladder) and _must_step_down(pressure, state, ladder[state.level], rules):
        return replace(state, level=state.level + 1, since_step=0, calm=0, overdrawn=0), RungMove(
            state.level, down=True
        )
    if state.level > 0 and state.calm >= rules.up_samples:
        return replace(state, level=state.level - 1, since_step=0, calm=0), RungMove(state.level - 1, down=False)
    return state, None


def _must_step_down(pressure: float, state: State, rung: Rung, rules: Rules) -> bool:
    """Tell whether the next rung is due."""
    if pressure >= max(rules.critical, rung.above):
        return True
    if state.since_step <= rules.settle_samples:
        return False
    if rung.frees_data and state.overdrawn >= rules.overdrawn_samples:
        return True
    return pressure >= max(rules.high, rung.above)


class Watchdog:
    """Samples memory in a daemon thread and keeps the budget and the ladder where `decide` wants them.

    `limit` may be a function, for limits that change. `floor` is what the pipe needs to make progress; `ceiling` is by
    default the budget's total at this moment. `give_up` is called once, with words, when the limit will be hit and all
    rungs are taken; `last_words` once, if memory grew on to the end all the same; `warn` before all that, where growth
    is so fast that the kernel may come first.
    """

    def __init__(
        self,
        budget: Budget,
        limit: int | Callable[[], int],
        meter: Meter,
        ladder: Sequence[Rung] = (),
        *,
        reserve: int | None = None,
        floor: int = MIN_DATA_NBYTES,
        ceiling: int | None = None,
        rules: Rules | None = None,
        every_s: float = SAMPLE_S,
        give_up: Callable[[str], None] | None = None,
        last_words: Callable[[str], None] | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        ceiling = max(floor, budget.total) if ceiling is None else ceiling
        if ceiling < floor:
            raise InvalidInput(f"The budget's ceiling of {size(ceiling)} is below its floor of {size(floor)}.")
        self.budget, self.meter, self.ladder = budget, meter, tuple(ladder)
        self.state = State()
        self._limit = limit
        self._reserve, self._floor, self._ceiling = reserve, floor, ceiling
        self._rules, self._every_s = rules or Rules(), every_s
        self._growth, self._give_up, self._last_words = Growth(), give_up, last_words
        self._warn, self._warned_s = warn, -WARN_AGAIN_S
        self._words = ""
        self._seen_limit, self._whole_s, self._decided_s = 0, 0.0, 0.0
        self.due_s = time.monotonic() + every_s
        self._stopping = threading.Event()
        self._sampling = threading.Lock()
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start to sample; a second start is an error."""
        if self._thread is not None:
            raise RuntimeError("the watchdog is already running")
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="penstock-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling and wait for the thread; harmless if it never started, and from a rung."""
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    @property
    def gave_up(self) -> bool:
        """Whether a verdict has fallen."""
        return bool(self._words)

    def sample(self, *, glance: bool = False) -> MemorySample:
        """Measure, decide and act once. At a `glance` the limit is the one of before, and processes too."""
        if not glance:
            self._seen_limit, self._whole_s = self._limit() if callable(self._limit) else self._limit, time.monotonic()
        limit = self._seen_limit
        leased, filling = self.budget.used, self.budget.filling
        measured = self.meter.glance() if glance else self.meter.read().nbytes
        leased = min(leased, self.budget.used)  # bytes on their way in or out may not be in `measured`
        facts = MemorySample(
            limit=limit,
            measured=measured,
            leased=leased,
            total=self.budget.total,
            reserve=default_reserve(limit, self._reserve),
            floor=self._floor,
            ceiling=self._ceiling,
            filling=filling,
        )
        now_s = time.monotonic()
        data = max(0, leased - self.budget.holders().get(PROCESSES, 0))
        self._growth.note(GrowthSample(now_s, measured, data))
        hurry = self._growth.hurries(limit)
        if hurry or not glance or now_s - self._decided_s >= 0.9 * self._every_s:  # patience is counted in samples
            self._decided_s = now_s
            level = self._decide(facts, hurry)
            while self.state.level > level and self._growth.at_once(limit):
                level = self._decide(facts, hurry)
        self._judge(facts)
        return facts

    def _decide(self, facts: MemorySample, hurry: bool) -> int:
        """Decide and act; returns the level before."""
        level = self.state.level
        self.state, actions = decide(facts, self.state, self.ladder, self._rules, hurry=hurry)
        for action in actions:
            self._act(action, facts)
        return level

    def _judge(self, facts: MemorySample) -> None:
        """Give the verdict if it is due, a warning before that, and the last words if it did not help."""
        if self._give_up is not None and self._growth.foreseen(facts.limit):
            self._foretell(facts)
        if self._growth.due(facts.limit, nothing_left=self.state.level >= len(self.ladder)):
            give_up, self._give_up = self._give_up, None
            if give_up is not None:
                self._words = self._growth.words(facts.limit, self.budget.holders())
                numbers = {"limit": facts.limit, "measured": facts.measured, "leased": facts.leased}
                events.emit("watchdog.verdict", self.budget.name, why=self._words, **numbers)
                give_up(self._words)
                return
        if self._words and facts.measured >= LAST * facts.limit and self._last_words is not None:
            last_words, self._last_words = self._last_words, None
            last_words(self._words)

    def _foretell(self, facts: MemorySample) -> None:
        """Write what would be the reason if the kernel were faster than the verdict; at most once a minute."""
        now_s = time.monotonic()
        if self._warn is None or now_s - self._warned_s < WARN_AGAIN_S:
            return
        self._warned_s = now_s
        words = self._growth.warning(facts.limit, self.budget.holders())
        self._warn(words)
        numbers = {"limit": facts.limit, "measured": facts.measured, "leased": facts.leased}
        events.emit("watchdog.warning", self.budget.name, why=words, **numbers)

    def look(self) -> None:
        """Sample now if that is due, for threads that pass by: the watchdog's own may starve for the GIL."""
        if time.monotonic() >= self.due_s and os.getpid() == self._pid:
            self._sample_once()

    def _run(self) -> None:
        pause_s, early = min(self._every_s, CLOSE_S), RECENT_SAMPLES
        while not self._stopping.wait(pause_s):
            pause_s = self._sample_once()
            if early:  # nothing is known about growth yet, and it may have begun before us
                pause_s, early = min(pause_s, CLOSE_S), early - 1

    def _sample_once(self) -> float:
        """Sample unless another thread does, and tell the pause until the next; a failing sample is reported."""
        if not self._sampling.acquire(blocking=False):
            return self._every_s
        pause_s = self._every_s
        try:
            self.sample(glance=bool(self._seen_limit) and time.monotonic() - self._whole_s < WHOLE_S)
            pause_s = self._growth.pause_s(self._seen_limit, self._every_s)
        except Exception as error:
            events.emit("watchdog.failed", self.budget.name, error=repr(error))
        finally:
            # Who passes by waits a little longer than the thread, which is cheaper where it gets its turn. After a
            # verdict all who pass by are stopped, before they begin another row.
            later_s = 3 * pause_s if pause_s >= self._every_s else pause_s
            self.due_s = 0.0 if self._words else time.monotonic() + later_s
            self._sampling.release()
        return pause_s

    def _act(self, action: Action, facts: MemorySample) -> None:
        """Carry out one decision and report it."""
        numbers = {"limit": facts.limit, "measured": facts.measured, "leased": facts.leased}
        if isinstance(action, Resize):
            self.budget.resize(action.total)
            events.emit("watchdog.budget", self.budget.name, before=facts.total, total=action.total, **numbers)
            return
        rung = self.ladder[action.rung]
        events.emit(f"watchdog.{rung.name}", self.budget.name, down=action.down, level=self.state.level, **numbers)
        (rung.down if action.down else rung.up)()


def trim_allocator() -> bool:
    """Ask glibc to give free memory back to the kernel; False where there is no such thing or nothing to give."""
    if sys.platform != "linux":
        return False
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return bool(trim(0)) if trim is not None else False
