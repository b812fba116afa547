"""When to look closer: decisions from samples, without clocks or files.

Covers: time left until the limit, how long to wait for the next sample, when to ask for stacks, holders and probes.
Does not cover: asking (supervise.py).

A fixed threshold comes too late for a job that fills a gigabyte a second and too early for one that rests at 85 %: what
counts is the time that is left at the present slope.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

CALM_S, ALERT_S = 0.2, 0.05
STILL_S, STILL, STILL_AFTER_S = 0.5, 0.005, 5.0
"""A sample in this time is enough where memory has changed by less than this share of the limit for so long: a jump
is noticed between samples all the same."""
SLOPE_S = 1.0
NEAR_S = 3.0
STACKS_GROWTH = 0.03
"""Share of the limit by which memory must have grown since the last stacks."""
HOLDERS_GROWTH = 0.10
HOLDERS_S, CALM_HOLDERS_S, EARLY = 3.0, 20.0, 12
"""Names are asked for often in the first half minute, then seldom, unless memory grows or is nearly used up."""
WALK_SHARE = 0.004
"""Share of the script's time that walks over names may take while nothing happens."""
PROBE_AGAIN_S, REARMED_S = 30.0, 3.0
"""Probes are not repeated for so long; sooner if memory has fallen below `LOW` in between: the next rise is new."""
LOW = 0.5


@dataclass
class Asker:
    """Keeps what was asked for last; `limit` is the number of bytes at which the job ends."""

    limit: int
    seen: deque[tuple[float, int]] = field(default_factory=deque)
    stacks_at: tuple[float, int] = (0.0, 0)
    holders_at: tuple[float, int] = (0.0, 0)
    probes_at: float = -1e9
    asked: int = 0
    rested: bool = False
    fallen: bool = False
    moved_at: tuple[float, int] = (0.0, 0)
    walk_s: float = 0.0

    def add(self, now: float, used: int, walk_s: float = 0.0) -> set[str]:
        """Take one sample and say what to ask for; `walk_s` is what the last walk over names took."""
        self.walk_s = walk_s
        if abs(used - self.moved_at[1]) > STILL * self.limit:
            self.moved_at = (now, used)
        self.seen.append((now, used))
        while len(self.seen) > 2 and now - self.seen[0][0] > SLOPE_S:
            self.seen.popleft()
        wanted = set()
        if used - self.stacks_at[1] > STACKS_GROWTH * self.limit:
            self.stacks_at = (now, used)
            wanted.add("stacks")
        elif used < self.stacks_at[1]:
            self.stacks_at = (self.stacks_at[0], used)
        if self._wants_holders(now, used):
            self.holders_at = (now, used)
            self.asked += 1
            wanted.add("holders")
        left = self.seconds_left()
        if not self.rested and used > 0.7 * self.limit and self._rests(now):
            self.rested = True  # once a run: a job may rest at 70 % for days
            self.probes_at = now
            wanted.add("probes")
        self.fallen = self.fallen or used < LOW * self.limit
        if now - self.probes_at > (REARMED_S if self.fallen else PROBE_AGAIN_S) and (
            used > 0.9 * self.limit or (used > 0.6 * self.limit and left < 1.0)
        ):
            self.probes_at, self.fallen = now, False
            wanted.add("probes")
        return wanted

    def _wants_holders(self, now: float, used: int) -> bool:
        since, grown = now - self.holders_at[0], used - self.holders_at[1]
        near = used > 0.8 * self.limit or self.seconds_left() < NEAR_S
        calm_s = max(HOLDERS_S if self.asked < EARLY else CALM_HOLDERS_S, self.walk_s / WALK_SHARE)
        return since > calm_s or (since > 0.15 and (near or grown > HOLDERS_GROWTH * self.limit))

    def _rests(self, now: float) -> bool:
        """Whether memory has stood still for most of a second: what is freed already can be told from what is held."""
        return now - self.seen[0][0] > 0.7 * SLOPE_S and abs(self.slope()) < 0.02 * self.limit

    def slope(self) -> float:
        """Bytes a second over the last second."""
        if len(self.seen) < 2 or self.seen[-1][0] <= self.seen[0][0]:
            return 0.0
        return (self.seen[-1][1] - self.seen[0][1]) / (self.seen[-1][0] - self.seen[0][0])

    def seconds_left(self) -> float:
        """Time until the limit at the present slope."""
        slope = self.slope()
        return (self.limit - self.seen[-1][1]) / slope if slope > 0 and self.seen else float("inf")

    def wait_s(self) -> float:
        """How long until the next sample."""
        if self.seconds_left() < 2 * NEAR_S:
            return ALERT_S
        return STILL_S if self.seen and self.seen[-1][0] - self.moved_at[0] > STILL_AFTER_S else CALM_S
