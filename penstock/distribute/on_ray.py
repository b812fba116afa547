"""Ranks on Ray Train, and tasks on Ray: one machine, or a cluster that exists.

Covers: `python -m penstock.distribute.on_ray N ADDRESS MODULE FOLDER CHECKPOINTS`: Ray places, joins, watches
and restarts the ranks; `tasks`: one function for many arguments.
Does not cover: what a rank does in its worker (ray_rank.py). Ray is an extra and is imported here only.

On a cluster, the paths in the arguments must be the same on every node: shared storage.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.core.errors import MissingExtra
from penstock.distribute.ray_rank import FAILED, run_rank
from penstock.guard.stop import EXIT_CODE, STOP_FILE

HERE = "local"
"""The address of a Ray that is started for this run and ends with it."""
RESTARTS = 12
"""As many as a supervisor allows."""
_STORE_NBYTES = 100 << 20
"""Ray would take 30 % of the machine for objects; ranks hand none over."""


def command(workers: int, cluster: str | None, module: str, folder: Path, checkpoints: Path) -> list[str]:
    """The command that runs so many ranks of a module on Ray."""
    paths = [str(folder.absolute()), str(checkpoints.absolute())]
    return [sys.executable, "-m", "penstock.distribute.on_ray", str(workers), cluster or HERE, module, *paths]


def launch(workers: int, address: str, module: str, folder: Path, checkpoints: Path) -> int:
    """Run the ranks to their end; 0, 143 if they were asked to stop, or 1 with a line that says why."""
    (folder / FAILED).unlink(missing_ok=True)
    with _connected(address, workers) as ray:
        try:
            config = {"module": module, "folder": str(folder), "checkpoints": str(checkpoints), "env": _env()}
            _trainer(ray, workers, config).fit()
        except ray.train.TrainingFailedError as error:
            print(f"penstock: the ranks failed on Ray: {error}", file=sys.stderr)
            return 1
    if (folder / FAILED).exists():
        return 1
    return EXIT_CODE if (folder / STOP_FILE).exists() else 0


def tasks(
    address: str, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], workers: int | None = None
) -> Iterator[Any]:
    """Results of `function(beside, *arguments)`, as they are ready; `beside` tasks may share a node's memory.

    A task whose worker or node is lost runs again.
    """
    with _connected(address, workers) as ray:
        cpus = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
        beside = max(1, min(len(arguments), max(cpus, default=1)))
        remote = ray.remote(num_cpus=1, max_retries=RESTARTS)(function)
        waiting = [remote.remote(beside, *some) for some in arguments]
        while waiting:
            ready, waiting = ray.wait(waiting, num_returns=1)
            yield ray.get(ready[0])


@contextmanager
def _connected(address: str, workers: int | None) -> Iterator[Any]:
    """Ray, started here if there is no other; a local one ends with the block."""
    ray = _ray()
    options: dict[str, Any] = {}
    if address == HERE:
        options = {"object_store_memory": _STORE_NBYTES, "num_cpus": workers, "include_dashboard": False}
    ray.init(address=address, log_to_driver=True, **options)
    try:
        yield ray
    finally:
        ray.shutdown()


def _trainer(ray: Any, workers: int, config: dict[str, Any]) -> Any:
    """A trainer whose ranks are joined on the backend that computes."""
    options = {
        "train_loop_config": config,
        "scaling_config": ray.train.ScalingConfig(
            num_workers=workers, use_gpu=ray.cluster_resources().get("GPU", 0) >= workers
        ),
        "run_config": ray.train.RunConfig(
            storage_path=str(Path(config["folder"]) / "ray"),
            failure_config=ray.train.FailureConfig(max_failures=RESTARTS),
        ),
    }
    if os.environ.get("KERAS_BACKEND") == "torch":
        from ray.train.torch import TorchTrainer

        return TorchTrainer(run_rank, **options)
    # JaxTrainer joins nothing on CPUs, and says nothing about it: ranks of JAX join each other by themselves.
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    return DataParallelTrainer(run_rank, **options)


def _env() -> dict[str, str]:
    """Settings that a rank needs and that Ray does not hand on."""
    names = ("KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL")
    return {name: os.environ[name] for name in os.environ if name in names or name.startswith("PENSTOCK_")}


def _ray() -> Any:
    try:
        import ray
        import ray.train
    except ImportError as error:
        raise MissingExtra(what="--engine ray", extra="ray") from error
    return ray


if __name__ == "__main__":
    sys.exit(launch(int(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]), Path(sys.argv[5])))
