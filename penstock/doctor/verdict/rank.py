"""Ranking causes for a run.

Covers: joining what evidence shows with what the script shows at the lines where memory grew.
Does not cover: detecting (causes/), showing (text.py, html.py).

A finding in the script alone proves nothing: healthy scripts have them too. It counts when memory grew on that line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.core.errors import PenstockError
from penstock.core.sizes import size
from penstock.doctor.causes import all_causes, causes_of
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.static.script import Script, read_program
from penstock.doctor.verdict.facts import Clues

HALF = 0.5
"""A cause that accounts for less of what was taken is not told with high confidence."""
CLOSE = 0.06
"""Two causes whose scores differ by less than this cannot be told apart with confidence."""
LEAST = 0.3
"""Causes below this are not reported."""
PART = 0.35
"""The part of what a run took that a cause must account for to be believed in full."""
ROOM = 0.9
ENOUGH = 0.3
"""Share of the limit whose growth on one line makes that line the culprit."""


@dataclass(frozen=True)
class Ranked:
    """A cause with everything that speaks for it in this run."""

    cause: Cause
    score: float
    shows: tuple[str, ...]
    place: str
    nbytes: int
    found: Found | None
    rival: str = ""
    part: float = 1.0
    """The part of what the run took that the cause's bytes account for; 1 where its bytes are not known."""

    @property
    def doubted(self) -> bool:
        """Whether another cause fits as well, or this one leaves most of the memory unexplained."""
        return bool(self.rival) or self.part < HALF

    @property
    def confidence(self) -> str:
        return "high" if self.score >= 0.75 and not self.doubted else "medium" if self.score >= 0.5 else "low"


def rank(facts: Clues, scripts: Sequence[Script] | None = None) -> list[Ranked]:
    """The causes of this run's growth, most likely first; empty if the run shows no trouble."""
    if not facts.died and facts.ending.kind != "time-limit" and facts.shape.peak < 0.5 * facts.limit:
        scripts = []
    program = read_scripts(facts) if scripts is None else list(scripts)
    found = []
    for cause in _in_question(facts):
        ranked = _judge(cause, facts, program)
        if ranked is not None and ranked.score >= LEAST:
            found.append(ranked)
    return with_rival(sorted(found, key=lambda item: (-item.score, -item.nbytes)))


def with_rival(found: list[Ranked]) -> list[Ranked]:
    """Where a second cause fits as well as the first, neither is told with high confidence."""
    if len(found) < 2 or found[0].score - found[1].score >= CLOSE or found[0].confidence != "high":
        return found
    first, second = found[:2]
    if first.place and first.place == second.place:
        return found  # two words for the same line: the cure starts there anyway
    return [
        dataclasses.replace(first, rival=second.cause.title),
        dataclasses.replace(second, rival=first.cause.title),
        *found[2:],
    ]


def _in_question(facts: Clues) -> Sequence[Cause]:
    """A run that finished with room to spare has proved that its data and its steps fit: only what grows counts."""
    if facts.died or facts.ending.kind != "finished" or facts.shape.peak > ROOM * facts.limit:
        return all_causes()
    proved = {cause.name for room in ("data", "step") for cause in causes_of(room)}
    return [cause for cause in all_causes() if cause.name not in proved]


def read_scripts(facts: Clues) -> list[Script]:
    """The script that ran, as far as it can still be read."""
    for path in facts.scripts:
        try:
            return read_program(path)
        except PenstockError:
            return []
    return []


def _judge(cause: Cause, facts: Clues, program: list[Script]) -> Ranked | None:
    sign = cause.live(facts)
    statics = [
        (found, facts.grew_at(found.place, near=found.near), facts.held_by(found.name) if found.name else 0)
        for script in (() if cause.against(facts) else program)
        for found in cause.script(script)
    ]
    best, grown, held = max(statics, key=lambda item: (max(item[1:]), item[0].sure), default=(None, 0, 0))
    by_code = 0.0 if best is None else _by_code(best, grown / facts.limit, held / facts.limit)
    by_run = sign.score if sign is not None else 0.0
    if not by_run and not by_code:
        return None
    joined = _joined(cause, sign, best if by_code else None, (grown, held))
    score = (max(by_run, by_code) + 0.15 * min(by_run, by_code)) * _explains(joined.nbytes, facts)
    part = min(1.0, joined.nbytes / facts.taken) if joined.nbytes else 1.0
    return dataclasses.replace(joined, score=min(1.0, score), part=part)


def _explains(nbytes: int, facts: Clues) -> float:
    """A cause whose bytes are known and are a small part of what was taken cannot be the whole reason."""
    if not nbytes:
        return 1.0
    return 0.6 + 0.4 * min(1.0, nbytes / (PART * facts.taken))


def _by_code(found: Found, grown: float, held: float) -> float:
    """How sure a finding in the script is, by the share of the limit that its line took or its name held."""
    if max(grown, held) <= 0.05:
        return 0.1
    by_line = (0.1 + 0.7 * min(1.0, grown / ENOUGH)) * (1.0 if found.sure else 0.8)
    by_name = 0.1 + 0.75 * min(1.0, held / ENOUGH) if held > 0.05 else 0.0
    return max(by_line, by_name)


def _joined(cause: Cause, sign: Sign | None, found: Found | None, seen: tuple[int, int]) -> Ranked:
    grown, held = seen
    shows = list(sign.shows) if sign else []
    if found is not None:
        shows.append(found.text)
    if grown and found is not None:
        shows.append(f"memory grew by {size(grown)} while that line ran")
    if held and found is not None:
        shows.append(f"{found.name} held {size(held)}")
    place = (sign.place if sign and sign.place else "") or (found.place if found else "")
    nbytes = max(sign.nbytes if sign else 0, grown, held, (found.nbytes or 0) if found else 0)
    return Ranked(cause, 0.0, tuple(shows), place, nbytes, found)
