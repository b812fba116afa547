"""What a cause of running out of memory is, for this package.

Covers: the parts of a cause: how it shows in evidence and in a script, why it happens, what cures it.
Does not cover: the causes themselves (the folders beside), ranking (verdict/rank.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from penstock.doctor.patch.edits import Edit
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues


@dataclass(frozen=True)
class Sign:
    """A cause as seen in evidence: how sure (0 to 1), what shows it, where in the script, how many bytes."""

    score: float
    shows: tuple[str, ...]
    place: str = ""
    nbytes: int = 0


@dataclass(frozen=True)
class Found:
    """A cause as seen in a script: where, in words, the bytes as far as they can be known, and the edits that cure it.

    `near`: growth within so many lines of `place` counts as growth here. `name` is the container or array that grows:
    a run in which it held much confirms the finding. `sure` is False where the code only allows it.
    """

    place: str
    text: str
    nbytes: int | None = None
    edits: tuple[Edit, ...] = ()
    near: int = 0
    sure: bool = True
    name: str = ""


def no_sign(facts: Clues) -> Sign | None:
    """For causes that evidence does not show."""
    return None


def not_in_scripts(script: Script) -> Iterable[Found]:
    """For causes that scripts do not show."""
    return ()


def never(facts: Clues) -> bool:
    """For causes that no evidence excludes."""
    return False


@dataclass(frozen=True)
class Cause:
    """One cause.

    `instead` is the one command or call that would have saved the job; `env` cures without a change. `against` says
    that the evidence excludes it, whatever the script looks like.
    """

    name: str
    title: str
    why: str
    cure: str
    live: Callable[[Clues], Sign | None] = no_sign
    script: Callable[[Script], Iterable[Found]] = not_in_scripts
    against: Callable[[Clues], bool] = never
    instead: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
