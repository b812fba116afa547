"""A remote store is listed once for all ranks on a host, which then also see the same files.

Covers: which processes belong to one start of a job, one of them listing while the others wait, what they share.
Does not cover: listing (remote_walk.py), keeping lists of local files, which have times to compare (sample_files.py).

A list is shared by the ranks of one start only: a store does not tell whether anything has changed since. A launcher
gives each start a port of its own, or a number of its job step, and is the parent of its ranks.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from penstock.core.world import find_world
from penstock.sources.listing.packed_names import IndexWriter, PathIndex
from penstock.sources.storage.index_folder import cache_folder, clear_old, written

_OF_A_START = (
    "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_STEP_ID",
)  # fmt: skip


def listed_once(what: str, write: Callable[[IndexWriter], str]) -> PathIndex | None:
    """The list that `write` makes, or that another rank on this host has made; None where there are no others."""
    start = _start()
    if start is None:
        return None
    folder = cache_folder()
    name = hashlib.blake2b(repr((start, what)).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    path = os.path.join(folder, f"listing-{name}")
    with open(f"{path}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel drops it with the process, however that ends
        if not os.path.exists(path):
            with written(path) as file:
                write(IndexWriter(file))
            clear_old(folder)
    return PathIndex(path)


def _start() -> tuple[str, ...] | None:
    """What ranks on this host have in common, and no other job nor an earlier start of this one."""
    if find_world().local_size < 2 or not {"MASTER_PORT", "SLURM_STEP_ID"} & os.environ.keys():
        return None
    return (*(os.environ.get(name, "") for name in _OF_A_START), *_parent())


def _parent() -> tuple[str, str]:
    """The launcher's number, and when it began: numbers are used again."""
    stat = Path(f"/proc/{os.getppid()}/stat")
    began = stat.read_text().rpartition(")")[2].split()[19] if stat.exists() else ""
    return str(os.getppid()), began
