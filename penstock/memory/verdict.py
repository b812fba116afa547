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
"""The limit counts as near if the growth of the last samples reaches it within so many more."""
RECENT_SAMPLES, SURE_SAMPLES = 3, 4
"""Growth must be seen in the last few samples, and so many samples in a row must agree: one jump is not a leak."""
NEAR = 0.9
"""Below this share of the limit nothing is stopped, however fast it grows."""
KEPT = 600


@dataclass(frozen=True, slots=True)
class GrowthSample:
    """One sample of the history."""

    time_s: float
    measured: int
    leased: int


class Growth:
    """The history of one watch. `due` is asked once a sample."""

    def __init__(self) -> None:
        self._history: deque[GrowthSample] = deque(maxlen=KEPT)
        self._sure = 0

    def note(self, now: GrowthSample) -> None:
        """Remember a sample."""
        self._history.append(now)

    def due(self, limit: int, *, nothing_left: bool) -> bool:
        """Whether the limit will be hit and nothing can prevent it."""
        per_sample = self._per_sample()
        now = self._history[-1].measured if self._history else 0
        soon = now + AHEAD_SAMPLES * per_sample >= limit
        growing = per_sample > limit * 1e-4
        self._sure = self._sure + 1 if nothing_left and growing and soon and now >= NEAR * limit else 0
        return self._sure >= SURE_SAMPLES

    def hurries(self, limit: int) -> bool:
        """Whether growth is so fast that rungs must be taken one a sample."""
        now = self._history[-1].measured if self._history else 0
        return now + 2 * AHEAD_SAMPLES * self._per_sample() >= limit

    def words(self, limit: int, holders: dict[str, int]) -> str:
        """The verdict: the numbers, who grew, since when, what to do."""
        now, start = self._history[-1], self._began()
        grew, data = now.measured - start.measured, now.leased - start.leased
        since_s = now.time_s - start.time_s
        outside = max(0, grew - max(0, data))
        held = ", ".join(f"{who} {size(n)}" for who, n in sorted(holders.items(), key=lambda item: -item[1])[:3] if n)
        blamed = (
            f"{size(outside)} of it outside of all data buffers: a function given to map() or the training loop keeps "
            f"objects. Look for lists, caches and closures that it appends to"
            if outside > grew // 2
            else f"most of it data ({held}): batches are kept by the loop, or the budget is too large for the model"
        )
        return (
            f"Memory is at {size(now.measured)} of {size(limit)} and still growing, and nothing is left to give way; "
            f"stopped before the kernel kills the process. It grew by {size(grew)} in the last {since_s:.0f} s, "
            f"{blamed}; or raise the limit."
        )

    def _per_sample(self) -> float:
        """Bytes per sample over the last ones; a jump that is over counts for nothing."""
        last = [sample.measured for sample in self._history][-AHEAD_SAMPLES:]
        if len(last) <= RECENT_SAMPLES:
            return 0.0
        now = last[-RECENT_SAMPLES - 1 :]
        return max(0.0, min((last[-1] - last[0]) / (len(last) - 1), (now[-1] - now[0]) / RECENT_SAMPLES))

    def _began(self) -> GrowthSample:
        """The sample after which memory only rose: the last that was no more than the least plus a little."""
        least = min(sample.measured for sample in self._history)
        rise = self._history[-1].measured - least
        return next(s for s in reversed(self._history) if s.measured <= least + rise * 0.05)
