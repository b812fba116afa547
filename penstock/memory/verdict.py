"""The last word before the kernel's: memory grows, nothing is left to give way, and the limit is near.

Covers: telling from a history of samples that the limit will be hit, who grew, since when.
Does not cover: sampling (watchdog.py), stopping the runs (engine/pipe.py).

A run that sits close below its limit is left alone. One that grows into it, with every rung of the ladder taken, would
be killed without a word: it is stopped while it can still say why.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from penstock.core.sizes import size

AHEAD_SAMPLES = 10
"""Growth is taken over so many samples."""
AHEAD_S = 1.0
"""The limit counts as near if growth at this rate reaches it within so long."""
RECENT_SAMPLES, SURE_SAMPLES = 3, 4
"""Growth must be seen in the last few samples, and so many samples in a row must agree: one jump is not a leak."""
NEAR = 0.9
"""Below this share of the limit nothing is stopped, however fast it grows."""
FORESEEN, FORESEEN_S = 0.4, 0.3
"""From this share on, growth that reaches the limit within so long is told beforehand: the kernel may be faster."""
AT_ONCE_S = 0.25
"""If the limit is nearer than this, all that can give way does so at once."""
LAST = 0.97
"""From this share of the limit on there is no time to be sure for longer."""
SURE_S = 0.04
"""Samples may be milliseconds apart: a jump must have had the time to end."""
SPACED_S, KEPT = 0.09, 600
"""The history that words are made of."""
CLOSE_S, FASTEST_S = 0.02, 0.005
"""The shortest pauses between samples: close to the limit, and while memory grows into it."""
STEEPEST = 4e9
"""Bytes a second that pauses reckon with before any growth was seen: what one thread fills."""


@dataclass(frozen=True, slots=True)
class GrowthSample:
    """One sample of the history."""

    time_s: float
    measured: int
    data: int
    """Leased bytes, without those of worker processes: what these hold is mostly what users' functions keep."""


class Growth:
    """The history of one watch. `due` is asked once a sample."""

    def __init__(self) -> None:
        self._history: deque[GrowthSample] = deque(maxlen=KEPT)
        self._recent: deque[GrowthSample] = deque(maxlen=AHEAD_SAMPLES)
        self._sure, self._sure_since_s = 0, 0.0

    def note(self, now: GrowthSample) -> None:
        """Remember a sample."""
        self._recent.append(now)
        if not self._history or now.time_s - self._history[-1].time_s >= SPACED_S:
            self._history.append(now)

    def due(self, limit: int, *, nothing_left: bool) -> bool:
        """Whether the limit will be hit and nothing can prevent it."""
        if not self._recent:
            return False
        rate, now = self._rate(), self._recent[-1]
        soon = now.measured + AHEAD_S * rate >= limit
        if not (nothing_left and rate > limit * 1e-3 and soon and now.measured >= NEAR * limit):
            self._sure = 0
            return False
        self._sure_since_s = self._sure_since_s if self._sure else now.time_s
        self._sure += 1
        long_enough = now.time_s - self._sure_since_s >= SURE_S or now.measured >= LAST * limit
        return self._sure >= SURE_SAMPLES and long_enough

    def foreseen(self, limit: int) -> bool:
        """Whether the limit will be hit so soon that a verdict may come too late."""
        rate, last = self._rate(), list(self._recent)[-3:]
        if rate <= limit * 1e-3 or min(_slope(last[:2]), _slope(last[1:])) < rate / 4:  # a jump that is over
            return False
        now = last[-1].measured
        return now >= FORESEEN * limit and now + FORESEEN_S * rate >= limit

    def hurries(self, limit: int) -> bool:
        """Whether growth is so fast that rungs must be taken one a sample."""
        now = self._recent[-1].measured if self._recent else 0
        return now + 2 * AHEAD_S * self._rate() >= limit

    def at_once(self, limit: int) -> bool:
        """Whether there is no time to take one rung a sample."""
        now = self._recent[-1].measured if self._recent else 0
        return now + AT_ONCE_S * self._rate() >= limit

    def pause_s(self, limit: int, every_s: float) -> float:
        """How long to wait before the next sample: a twentieth of the time that seems to be left."""
        if not self._recent:
            return every_s
        left = max(0, limit - self._recent[-1].measured)
        pause_s = min(every_s, max(CLOSE_S, left / STEEPEST))
        rate = _slope(list(self._recent)[-2:])
        return pause_s if rate <= 0 else min(pause_s, max(FASTEST_S, left / rate / 20))

    def warning(self, limit: int, holders: dict[str, int]) -> str:
        """What is written before it is sure: the kernel's kill would leave no words."""
        now, rate = self._recent[-1].measured, self._rate()
        left_s = max(0, limit - now) / rate
        return (
            f"Memory is at {size(now)} of {size(limit)} and grows by {size(int(rate))} a second: the limit is "
            f"{left_s:.2f} s away. If this process is killed now, that is why. {self._cause(holders)}."
        )

    def words(self, limit: int, holders: dict[str, int]) -> str:
        """The verdict: the numbers, who grew, since when, what to do."""
        now = self._recent[-1].measured
        return (
            f"Memory is at {size(now)} of {size(limit)} and still growing, and nothing is left to give way; "
            f"stopped before the kernel kills the process. {self._cause(holders)}; or raise the limit."
        )

    def _cause(self, holders: dict[str, int]) -> str:
        """Who grew, since when, what to look for."""
        now, start = self._recent[-1], self._began()
        grew, data = now.measured - start.measured, now.data - start.data
        since_s = now.time_s - start.time_s
        outside = max(0, grew - max(0, data))
        held = ", ".join(f"{who} {size(n)}" for who, n in sorted(holders.items(), key=lambda item: -item[1])[:3] if n)
        blamed = (
            f"{size(outside)} of it outside of all data buffers: a function given to map() or the training loop keeps "
            f"objects. Look for lists, caches and closures that it appends to"
            if outside > grew // 2
            else f"most of it data ({held}): batches are kept by the loop, or the budget is too large for the model"
        )
        return f"It grew by {size(grew)} in the last {since_s:.1f} s, {blamed}"

    def _rate(self) -> float:
        """Bytes a second over the last samples; a jump that is over counts for nothing."""
        last = list(self._recent)
        if len(last) <= RECENT_SAMPLES:
            return 0.0
        return max(0.0, min(_slope(last), _slope(last[-RECENT_SAMPLES - 1 :])))

    def _began(self) -> GrowthSample:
        """The sample after which memory only rose: the last that was no more than the least plus a little."""
        least = min(sample.measured for sample in self._history)
        rise = self._history[-1].measured - least
        return next(s for s in reversed(self._history) if s.measured <= least + rise * 0.05)


def _slope(samples: list[GrowthSample]) -> float:
    """Bytes a second from the first sample to the last."""
    took_s = samples[-1].time_s - samples[0].time_s
    return (samples[-1].measured - samples[0].measured) / took_s if took_s > 0 else 0.0
