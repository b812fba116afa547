"""The last checkpoint that a run has left.

Covers: what torch, Keras and Lightning were seen to save, and the folders and files that trainers leave by custom
(Transformers, Accelerate, Orbax, Lightning, Keras), as far as they are younger than the run.
Does not cover: whether a checkpoint can be read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from penstock.doctor.verdict.facts import Clues

FILES = re.compile(r".*\.(ckpt|keras|weights\.h5)$")
FOLDERS = re.compile(r"(checkpoint[-_]\d+|.*\.ckpt)$")
MARKS = ("_CHECKPOINT_METADATA", "trainer_state.json")
"""Files by which a folder of Orbax or Transformers is known, whatever its name."""
DEEPEST, MOST_ENTRIES = 5, 20_000
UNFINISHED = re.compile(r"(^tmp|\.tmp$|\.orbax-checkpoint-tmp)")


def last_checkpoint(facts: Clues) -> str:
    """The youngest one that is still there; empty if there is none."""
    saved = [str(call.get("path")) for call in facts.calls("saved")]
    found = {_whole(Path(path)) for path in saved if os.path.exists(path)}
    root, start_s = Path(facts.evidence.run["cwd"]), float(facts.evidence.run["start"])
    if root.is_dir():
        found |= {path for path in _by_custom(root) if path.stat().st_mtime >= start_s}
    return str(max(found, key=lambda path: path.stat().st_mtime, default=""))


def _whole(path: Path) -> Path:
    """The folder that is the checkpoint, where a saved file is only a part of one."""
    return next((parent for parent in path.parents if _is_checkpoint(parent)), path)


def _is_checkpoint(folder: Path) -> bool:
    return bool(FOLDERS.match(folder.name)) or any((folder / mark).exists() for mark in MARKS)


def _by_custom(root: Path) -> Iterator[Path]:
    """Look through the run's working folder, but not far: it may hold the data too."""
    pending, seen = [(root, 0)], 0
    for folder, depth in pending:  # grows while it is walked
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        seen += len(entries)
        for entry in entries:
            path = Path(entry.path)
            if entry.name.startswith(".") or UNFINISHED.search(entry.name):
                continue
            if not entry.is_dir(follow_symlinks=False):
                if FILES.match(entry.name):
                    yield path
            elif _is_checkpoint(path):
                yield path
            elif depth < DEEPEST and seen < MOST_ENTRIES:
                pending.append((path, depth + 1))
