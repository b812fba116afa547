"""Which rank of how many this process is, whatever started it.

Covers: torch.distributed, Ray Train, jax.distributed, TF_CONFIG, torchrun and Slurm, asked in that order; what a
launcher promises against what the collective has.
Does not cover: talking to other ranks (guard/*/ranks.py, distribute/), dividing data (plan/ranks.py).

Nothing is imported: an engine that this process has not loaded cannot have started it as a rank. A collective that is
up knows best; variables of a launcher count until then.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import PenstockError


class WorldError(PenstockError):
    """The ranks that were started are not the ranks that work together."""


class RanksLost(WorldError, RuntimeError):
    """A sum over ranks failed: another of them is gone. Started again together, they can go on."""


@dataclass(frozen=True, slots=True)
class World:
    """One process among those that train together. `local_*` count the ranks on the same host."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    engine: str = "one process"

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size} ({self.engine})"


ALONE = World()


def find_world() -> World:
    """This process's place in the world; `ALONE` where nothing says otherwise."""
    found = collective_world()
    return found if found is not None and found.size > 1 else launched_world()


def collective_world() -> World | None:
    """The world as the collective has it that is up in this process; None if there is none."""
    for ask in (_of_torch, _of_ray, _of_jax):
        found = ask()
        if found is not None:
            return found
    return None


def launched_world(env: Mapping[str, str] | None = None) -> World:
    """The world as the launcher's variables have it."""
    found = os.environ if env is None else env
    for ask in (_of_torchrun, _of_tensorflow, _of_slurm):
        world = ask(found)
        if world is not None and world.size > 1:
            return world
    return ALONE


def check_together() -> World:
    """The world, after checking that the ranks that were started are joined by a collective.

    Copies that train side by side without talking look healthy and learn from a part of the data each.
    """
    launched, joined = launched_world(), collective_world()
    size = 1 if joined is None else joined.size
    if launched.size > 1 and size != launched.size:
        raise WorldError(
            f"{launched.engine} started {launched.size} processes, but the collective of this one has {size}: they "
            f"would train {launched.size} separate models. {_how_to_join(launched.engine)} To train this process "
            f"alone, unset its launcher's variables."
        )
    return joined or launched


def joined_size(backend: str) -> int:
    """How many processes a framework's own collective joins; 1 where it is not up."""
    if backend == "torch":
        dist: Any = sys.modules.get("torch.distributed")
        return int(dist.get_world_size()) if dist is not None and dist.is_initialized() else 1
    jax: Any = sys.modules.get("jax")
    up = backend == "jax" and jax is not None and jax.distributed.is_initialized()
    return int(jax.process_count()) if up else 1


def _how_to_join(engine: str) -> str:
    if engine == "TF_CONFIG":
        return "Keras 3's fit does not work across TensorFlow workers; use torchrun or Ray with the torch backend."
    return "Call torch.distributed.init_process_group() or jax.distributed.initialize() before training."


def _of_torch() -> World | None:
    dist: Any = sys.modules.get("torch.distributed")
    up: Callable[[], bool] | None = getattr(dist, "is_initialized", None)  # not there while another thread imports it
    if up is None or not up():
        return None
    local = _local(os.environ, dist.get_rank(), dist.get_world_size())
    return World(dist.get_rank(), dist.get_world_size(), *local, "torch.distributed")


def _of_ray() -> World | None:
    train: Any = sys.modules.get("ray.train")
    if not hasattr(train, "get_context"):
        return None
    try:
        context = train.get_context()
        rank, size = int(context.get_world_rank()), int(context.get_world_size())
    except Exception:  # outside of a worker, whatever this version of Ray raises there
        return None
    return World(rank, size, int(context.get_local_rank()), int(context.get_local_world_size()), "Ray Train")


def _of_jax() -> World | None:
    jax: Any = sys.modules.get("jax")
    up: Callable[[], bool] | None = getattr(getattr(jax, "distributed", None), "is_initialized", None)
    if up is None or not up():
        return None
    rank, size = int(jax.process_index()), int(jax.process_count())
    return World(rank, size, *_local(os.environ, rank, size), "jax.distributed")


def _of_torchrun(env: Mapping[str, str]) -> World | None:
    rank, size = _number(env, "RANK"), _number(env, "WORLD_SIZE")
    if rank is None or size is None:
        return None
    return World(rank, size, *_local(env, rank, size), "torchrun" if "TORCHELASTIC_RUN_ID" in env else "RANK")


def _of_tensorflow(env: Mapping[str, str]) -> World | None:
    text = env.get("TF_CONFIG")
    if not text:
        return None
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        workers = [*cluster.get("chief", []), *cluster.get("worker", [])]
        first = len(cluster.get("chief", [])) if task["type"] == "worker" else 0
        rank = first + int(task["index"])
        mine = workers[rank].rsplit(":", 1)[0]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise WorldError(f"TF_CONFIG cannot be understood ({error!r}): {text[:200]}") from error
    hosts = [address.rsplit(":", 1)[0] for address in workers]
    return World(rank, len(workers), hosts[:rank].count(mine), hosts.count(mine), "TF_CONFIG")


def _of_slurm(env: Mapping[str, str]) -> World | None:
    # SLURM_NTASKS also stands in the batch script, which is one process; only srun's tasks have a step's count.
    rank, size = _number(env, "SLURM_PROCID"), _number(env, "SLURM_STEP_NUM_TASKS")
    if rank is None or size is None:
        return None
    return World(rank, size, *_local(env, rank, size), "Slurm")


def _local(env: Mapping[str, str], rank: int, size: int) -> tuple[int, int]:
    """Rank and number of ranks on this host; where nothing says, all ranks are taken to be here."""
    local_size = _number(env, "LOCAL_WORLD_SIZE")
    if local_size is not None:
        return _number(env, "LOCAL_RANK") or 0, local_size
    tasks = _slurm_tasks(env)
    if tasks is not None:
        return _number(env, "SLURM_LOCALID") or 0, tasks
    return rank, size


def _slurm_tasks(env: Mapping[str, str]) -> int | None:
    """This node's number in a list such as `2(x3),1`: two tasks on each of three nodes, one on the fourth."""
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", env.get("SLURM_STEP_TASKS_PER_NODE", "")):
        counts += [int(count)] * int(times or 1)
    node = _number(env, "SLURM_NODEID") or 0
    return counts[node] if node < len(counts) else None


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    return int(text) if text.isdigit() else None
