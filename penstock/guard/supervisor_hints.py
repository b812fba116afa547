"""What a supervised worker and its supervisor tell each other.

Covers: the size in use, written by the worker beside its checkpoints; the size to start with, given in the environment.
Does not cover: starting and restarting (supervise.py).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from penstock.core.durable import replace_durably

MICRO_BATCH = "PENSTOCK_MICRO_BATCH"
RESUME = "PENSTOCK_RESUME"
SUPERVISED = "PENSTOCK_SUPERVISED"
FILE = "guard.json"


def micro_batch_hint() -> int | None:
    """The size that the supervisor asks this process to start with."""
    text = os.environ.get(MICRO_BATCH, "")
    return int(text) if text.isdigit() and int(text) > 0 else None


def resume_hint() -> bool:
    """Whether the supervisor started this process to go on with a run."""
    return os.environ.get(RESUME) == "1"


def write_hint(folder: Path, values: dict[str, Any]) -> None:
    """Tell, whole or not at all, what is being tried now."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f"{FILE}.new"
    fresh.write_text(json.dumps(values))
    replace_durably(fresh, folder / FILE)


def read_hint(folder: Path) -> dict[str, Any] | None:
    """What the last worker was trying, if it told."""
    path = folder / FILE
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    return found if isinstance(found, dict) else None


def forget_hint(folder: Path) -> None:
    """Remove what an earlier run left."""
    (folder / FILE).unlink(missing_ok=True)
