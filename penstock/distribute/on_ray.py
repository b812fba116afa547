"""Ranks on Ray Train: one machine, or a cluster that exists.

Covers: `python -m penstock.distribute.on_ray N ADDRESS MODULE ARGUMENTS`: Ray places, joins, watches and restarts the
ranks; each runs the module's `main`, as it does under torchrun.
Does not cover: what the ranks do. Ray is an extra and is imported here only.

On a cluster, the paths in the arguments must be the same on every node: shared storage.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.core.errors import MissingExtra

HERE = "local"
"""The address of a Ray that is started for this run and ends with it."""
RESTARTS = 3
_STORE_NBYTES = 100 << 20
"""Ray would take 30 % of the machine for objects; ranks hand none over."""


def command(workers: int, cluster: str | None, module: str, *arguments: str) -> list[str]:
    """The command that runs so many ranks of a module on Ray."""
    return [sys.executable, "-m", "penstock.distribute.on_ray", str(workers), cluster or HERE, module, *arguments]


def launch(workers: int, address: str, module: str, arguments: Sequence[str]) -> int:
    """Run the ranks to their end; 0, or 1 if they failed more often than Ray may start them again."""
    ray, torch_trainer, train = _ray()
    local = address == HERE
    options: dict[str, Any] = {"object_store_memory": _STORE_NBYTES, "num_cpus": workers} if local else {}
    ray.init(address=address, log_to_driver=True, include_dashboard=False if local else None, **options)
    try:
        trainer = torch_trainer.TorchTrainer(
            _rank,
            train_loop_config={"module": module, "arguments": list(arguments), "env": _env()},
            scaling_config=train.ScalingConfig(num_workers=workers),
            run_config=train.RunConfig(
                storage_path=str(Path(arguments[0]).absolute() / "ray"),
                failure_config=train.FailureConfig(max_failures=RESTARTS),
            ),
        )
        trainer.fit()
    except train.TrainingFailedError as error:
        print(f"penstock: the ranks failed on Ray: {error}", file=sys.stderr)
        return 1
    finally:
        ray.shutdown()
    return 0


def _rank(config: dict[str, Any]) -> None:
    """One rank, in a worker that Ray started and joined."""
    from ray import train

    os.environ.update(config["env"])
    context = train.get_context()
    # The launcher's variables, as torchrun would set them: ranks are told in one way only.
    os.environ.update(
        RANK=str(context.get_world_rank()),
        WORLD_SIZE=str(context.get_world_size()),
        LOCAL_RANK=str(context.get_local_rank()),
        LOCAL_WORLD_SIZE=str(context.get_local_world_size()),
    )
    code = importlib.import_module(config["module"]).main(Path(config["arguments"][0]))
    if code:
        raise RuntimeError(f"rank {context.get_world_rank()} ended with {code}; the run's log says why")


def _env() -> dict[str, str]:
    """Settings that a rank needs and that Ray does not hand on."""
    names = ("KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL")
    return {name: os.environ[name] for name in os.environ if name in names or name.startswith("PENSTOCK_")}


def _ray() -> tuple[Any, Any, Any]:
    try:
        import ray
        import ray.train
        import ray.train.torch
    except ImportError as error:
        raise MissingExtra(what="--engine ray", extra="ray") from error
    return ray, ray.train.torch, ray.train


if __name__ == "__main__":
    sys.exit(launch(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]))
