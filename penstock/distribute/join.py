"""Ranks that were started become one training.

Covers: bringing up torch.distributed or jax.distributed from a launcher's variables, and checking that all came.
Does not cover: launching (on_torchrun.py, on_ray.py), talking (guard/ranks/).
"""

from __future__ import annotations

import atexit
import datetime
import os
import sys

from penstock.core.errors import MissingExtra
from penstock.core.world import World, WorldError, check_together, collective_world, launched_world

TIMEOUT_S = 600
"""How long a rank waits for the others in one sum before it gives up."""


def join(backend: str) -> World:
    """Join the ranks that the launcher started, on the framework that computes; a process alone stays alone."""
    world = launched_world()
    if world.size > 1 and collective_world() is None:
        if backend == "torch":
            _join_torch()
        elif backend == "jax":
            _join_jax(world)
        else:
            raise WorldError(
                f"{world.engine} started {world.size} processes, and the model runs on {backend}. Keras 3's fit does "
                f"not work across TensorFlow workers: use the torch or jax backend."
            )
    return check_together()


def _join_torch() -> None:
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        raise MissingExtra(what="Training across processes", extra="torch") from error
    gpus = torch.cuda.is_available()
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if gpus else "gloo", timeout=datetime.timedelta(seconds=TIMEOUT_S))
    atexit.register(_leave_torch)


def _leave_torch() -> None:
    """End the group's threads while the interpreter is still whole: what they let go later may abort the process.

    Not after an error: a sum that the others will never join would be waited for.
    """
    import torch.distributed as dist

    if dist.is_initialized() and not hasattr(sys, "last_value"):
        dist.destroy_process_group()


def _join_jax(world: World) -> None:
    try:
        import jax
    except ImportError as error:
        raise MissingExtra(what="Training across processes", extra="jax") from error
    host, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))
    # torchrun's own store listens on the port itself.
    jax.distributed.initialize(f"{host}:{port + 1}", world.size, world.rank)
