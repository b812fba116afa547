"""Ranks that were started become one training.

Covers: bringing up torch.distributed or jax.distributed from a launcher's variables, and checking that all came.
Does not cover: launching (on_torchrun.py, on_ray.py), talking (guard/ranks/).
"""

from __future__ import annotations

import atexit
import datetime
import os
import socket
import sys
import threading
from typing import Any

from penstock.core.errors import MissingExtra
from penstock.core.world import World, WorldError, check_together, find_world, joined_size
from penstock.distribute.parent_death import die_with_parent

TIMEOUT_S = "PENSTOCK_RANKS_TIMEOUT_S"
"""How long a rank waits for the others in one sum before it gives up: 600 s. A host whose cable is cut says no goodbye,
and is noticed after this time."""


def join(backend: str) -> World:
    """Join the ranks that the launcher started, on the framework that computes; a process alone stays alone."""
    world = find_world()
    if world.size > 1 and joined_size(backend) != world.size:
        if backend == "torch":
            _join_torch()
        elif backend == "jax":
            _join_jax(world)
        else:
            raise WorldError(
                f"{world.engine} started {world.size} processes, and the model runs on {backend}. Keras 3's fit does "
                f"not work across TensorFlow workers: use the torch or jax backend."
            )
    if "TORCHELASTIC_RUN_ID" in os.environ and threading.current_thread() is threading.main_thread():
        die_with_parent()  # ranks whose launcher was killed would train on, beside those of the next one
    return check_together()


def _join_torch() -> None:
    try:
        import torch
        import torch.distributed as dist

        # Its functions take the group of the moment as a default argument. Imported later, by Keras, they would keep
        # the group, and with it threads that outlive `_leave_torch`.
        import torch.distributed.nn
    except ImportError as error:
        raise MissingExtra(what="Training across processes", extra="torch") from error
    gpus = torch.cuda.is_available()
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if gpus else "gloo", timeout=_timeout())
    atexit.register(_leave_torch)


def _leave_torch() -> None:
    """End the group's threads while the interpreter is still whole.

    One that lets go of a tensor later has to exit in the middle of a destructor, which ends the process with SIGABRT.
    Not after an error: a sum that the others will never join would be waited for.
    """
    import torch.distributed as dist

    if dist.is_initialized() and not hasattr(sys, "last_value"):
        dist.destroy_process_group()


def _timeout() -> datetime.timedelta:
    return datetime.timedelta(seconds=float(os.environ.get(TIMEOUT_S, "600")))


def _join_jax(world: World) -> None:
    try:
        import jax
    except ImportError as error:
        raise MissingExtra(what="Training across processes", extra="jax") from error
    jax.distributed.initialize(_coordinator(world), world.size, world.rank)


def _coordinator(world: World) -> str:
    """Where rank 0 of JAX listens."""
    if world.engine == "Ray Train":
        collective: Any = _ray_collective()
        return str(collective.broadcast_from_rank_zero(_free_address() if world.rank == 0 else None))
    host, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))
    # torchrun's own store listens on the port itself.
    return f"{host}:{port + 1}"


def _ray_collective() -> Any:
    import ray.train.collective

    return ray.train.collective


def _free_address() -> str:
    """This node's address as Ray knows it, and a port that nobody uses now."""
    host = str(sys.modules["ray"].util.get_node_ip_address())
    with socket.socket() as taken:
        taken.bind((host, 0))
        return f"{host}:{taken.getsockname()[1]}"
