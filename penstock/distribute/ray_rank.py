"""One rank, in a worker that Ray started.

Covers: telling the rank who it is, running its module, how it ends, a smaller micro-batch after a kill for memory.
Does not cover: starting workers (on_ray.py), what the module does.

Ray starts ranks again that were lost, whatever the reason. One that failed by itself would fail again: it says so in a
file, and the ranks that are started next end at once.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
from pathlib import Path
from typing import Any

from penstock.core.durable import replace_durably
from penstock.guard import supervisor_hints as hints
from penstock.guard.stop import EXIT_CODE, LOST_CODE, STOP_FILE, STOP_FILE_ENV
from penstock.guard.supervise import kills

FAILED = ".ranks-failed"
"""In the run folder: a rank has failed, and its log says why."""
_KILLS = "ray/kills-{}.json"


def run_rank(config: dict[str, Any]) -> None:
    """Ray's training function."""
    from ray import train

    folder, context = Path(config["folder"]), train.get_context()
    if (folder / FAILED).exists():
        return
    os.environ.update(config["env"])
    # The launcher's variables, as torchrun would set them: ranks are told in one way only.
    os.environ.update(
        {
            "RANK": str(context.get_world_rank()),
            "WORLD_SIZE": str(context.get_world_size()),
            "LOCAL_RANK": str(context.get_local_rank()),
            "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
            STOP_FILE_ENV: str(folder / STOP_FILE),
        }
    )
    smaller = smaller_after_kill(config, kills(), f"{socket.gethostname()}-{context.get_local_rank()}")
    if smaller is not None:
        os.environ[hints.MICRO_BATCH] = str(smaller)
    code = _ended(config["module"], folder)
    if code == LOST_CODE:
        raise RuntimeError(f"rank {context.get_world_rank()} lost another one")
    if code not in (0, EXIT_CODE):
        (folder / FAILED).write_text(f"rank {context.get_world_rank()}: {code}")
        raise RuntimeError(f"rank {context.get_world_rank()} ended with {code}; the run's log says why")


def _ended(module: str, folder: Path) -> int:
    try:
        return int(importlib.import_module(module).main(folder))
    except SystemExit as stopped:  # asked to stop, and saved
        return stopped.code if isinstance(stopped.code, int) else 1


def smaller_after_kill(config: dict[str, Any], now: int, who: str) -> int | None:
    """Half of the micro-batch in use, if the kernel has killed for memory on this host since `who` started last."""
    path = Path(config["folder"]) / _KILLS.format(who)
    before = int(json.loads(path.read_text())) if path.exists() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(now))
    replace_durably(fresh, path)
    hint = hints.read_hint(Path(config["checkpoints"]))
    if before is None or now <= before or hint is None:
        return None
    return max(1, int(hint["micro"]) // 2)
