"""Which rank a process finds itself to be, from what each launcher really sets."""

from __future__ import annotations

import json

import pytest

from penstock.core.world import ALONE, World, WorldError, check_together, find_world, launched_world

TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none",
}  # fmt: skip
SRUN = {
    "SLURM_PROCID": "6", "SLURM_STEP_NUM_TASKS": "7", "SLURM_LOCALID": "0", "SLURM_NODEID": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
}  # fmt: skip


def tf_config(kind: str, index: int, **cluster: list[str]) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


@pytest.mark.parametrize(
    ("env", "world"),
    [
        ({}, ALONE),
        (TORCHRUN, World(5, 8, 1, 4, "torchrun")),
        (SRUN, World(6, 7, 0, 1, "Slurm")),
        ({**SRUN, "SLURM_PROCID": "3", "SLURM_NODEID": "1", "SLURM_LOCALID": "1"}, World(3, 7, 1, 2, "Slurm")),
        (tf_config("worker", 1, worker=["a:1", "b:1", "b:2"]), World(1, 3, 0, 2, "TF_CONFIG")),
        (tf_config("worker", 0, chief=["a:1"], worker=["a:2", "b:1"]), World(1, 3, 1, 2, "TF_CONFIG")),
        (tf_config("chief", 0, chief=["a:1"], worker=["b:1"]), World(0, 2, 0, 1, "TF_CONFIG")),
        ({"RANK": "1", "WORLD_SIZE": "2"}, World(1, 2, 1, 2, "RANK")),
        ({"RANK": "0", "WORLD_SIZE": "1"}, ALONE),
        # The body of a batch script is one process, although the job has four tasks.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, ALONE),
    ],
)
def test_the_launchers_variables_tell_rank_and_size(env: dict[str, str], world: World) -> None:
    assert launched_world(env) == world


def test_a_tf_config_that_makes_no_sense_is_an_error_and_not_a_single_process() -> None:
    with pytest.raises(WorldError, match="TF_CONFIG cannot be understood"):
        launched_world(tf_config("worker", 7, worker=["a:1", "b:1"]))


def test_ranks_that_no_collective_joins_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert find_world() == World(5, 8, 1, 4, "torchrun")
    with pytest.raises(WorldError, match=r"torchrun started 8 processes.*would train 8 separate models"):
        check_together()


def test_a_process_alone_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*TORCHRUN, *SRUN, "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    assert check_together() == ALONE
