"""How a run goes on after it died.

Covers: the last checkpoint that was saved, the script's own option for resuming, and the command of both.
Does not cover: starting it again (run/retry.py). An option that the script does not declare is not guessed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.doctor.static.script import Script, keyword
from penstock.doctor.verdict.checkpoints import last_checkpoint
from penstock.doctor.verdict.facts import Clues

OPTION = re.compile(
    r"--(?:resume|restore|(?:from|load)[-_](?:ckpt|checkpoint)|(?:ckpt|checkpoint)[-_]path|continue[-_]from)[\w-]*$"
)


@dataclass(frozen=True)
class Resume:
    """`command` is empty where the script has no option for it; `checkpoint` where none was saved or none is left."""

    checkpoint: str
    age_s: float | None
    command: str

    @property
    def text(self) -> str:
        age = f", saved {self.age_s:.0f} s before the end" if self.age_s is not None else ""
        return f"The last checkpoint is {self.checkpoint}{age}." if self.checkpoint else ""


def how_to_resume(facts: Clues, scripts: Sequence[Script]) -> Resume:
    """From what was saved and what the script's arguments are called."""
    checkpoint = last_checkpoint(facts)
    end = facts.evidence.samples[-1]["t"] if facts.evidence.samples else 0.0
    age_s = max(0.0, float(end) - Path(checkpoint).stat().st_mtime) if checkpoint else None
    words = [str(word) for word in facts.evidence.run["command"]]
    if own := _own_training(words):
        return Resume(checkpoint, age_s, own)
    option = next((found for script in scripts if (found := _option(script)) is not None), None)
    if option is None or any(word.split("=")[0] == option[0] for word in words):
        return Resume(checkpoint, age_s, "")
    name, takes_value = option
    if takes_value and not checkpoint:
        return Resume(checkpoint, age_s, "")
    return Resume(checkpoint, age_s, shlex.join([*words, name, *([checkpoint] if takes_value else [])]))


def _own_training(words: list[str]) -> str:
    """`penstock train` goes on by itself in the folder that it was given."""
    train = next(
        (n for n, word in enumerate(words[:-1]) if word.endswith("penstock") and words[n + 1] == "train"), None
    )
    if train is None or "--out" not in words[:-1]:
        return ""
    return shlex.join([*words[: train + 2], "--resume", "--out", words[words.index("--out") + 1]])


def _option(script: Script) -> tuple[str, bool] | None:
    """The option by which a script's parser resumes, and whether it takes a value."""
    for call in script.calls(".add_argument"):
        names = [str(script.value(arg)) for arg in call.args]
        name = next((n for n in names if OPTION.match(n)), "")
        if name:
            action = script.value(keyword(call, "action"))
            return name, not str(action).startswith("store_")
    return None
