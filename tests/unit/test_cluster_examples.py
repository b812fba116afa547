"""The files for Slurm and Kubernetes: what they start is parsed by what would run it.

Clusters are not here. The two Kubernetes files were compared once, by hand, with the whole definitions of RayJob
(KubeRay) and PyTorchJob (training operator 1.9), unknown fields refused; what is checked each time is below.
"""

from __future__ import annotations

import shlex
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml

from penstock.cli.main import app

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "examples/cluster"
TEXT, COUNT = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 1}
AMOUNTS = {"type": "object", "required": ["cpu", "memory"], "additionalProperties": TEXT}


def closed(*required: str, **properties: Any) -> dict[str, Any]:
    """An object of these fields and no others."""
    return {
        "type": "object", "properties": properties, "required": list(required or properties),
        "additionalProperties": False,
    }  # fmt: skip


def listed(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": item}


CONTAINER = closed(
    "name", "image", "resources", "volumeMounts",
    name=TEXT, image=TEXT, command=listed(TEXT), env=listed(closed(name=TEXT, value=TEXT)),
    resources=closed(limits=AMOUNTS, requests=AMOUNTS), volumeMounts=listed(closed(name=TEXT, mountPath=TEXT)),
)  # fmt: skip
CLAIM = closed(name=TEXT, persistentVolumeClaim=closed(claimName=TEXT))
POD = closed(spec=closed(containers=listed(CONTAINER), volumes=listed(CLAIM)))
HEAD = closed(rayStartParams={"type": "object", "additionalProperties": TEXT}, template=POD)
WORKERS = closed(
    groupName=TEXT, replicas=COUNT, minReplicas=COUNT, maxReplicas=COUNT, **HEAD["properties"]
)  # fmt: skip
RAY_JOB = closed(
    apiVersion={"const": "ray.io/v1"}, kind={"const": "RayJob"}, metadata=closed(name=TEXT),
    spec=closed(
        entrypoint=TEXT, shutdownAfterJobFinishes={"type": "boolean"},
        rayClusterSpec=closed(headGroupSpec=HEAD, workerGroupSpecs=listed(WORKERS)),
    ),
)  # fmt: skip
ELASTIC = closed(minReplicas=COUNT, maxReplicas=COUNT, maxRestarts=COUNT, rdzvBackend={"const": "c10d"})
REPLICAS = closed(replicas=COUNT, restartPolicy={"enum": ["OnFailure", "Always", "ExitCode"]}, template=POD)
PYTORCH_JOB = closed(
    apiVersion={"const": "kubeflow.org/v1"}, kind={"const": "PyTorchJob"}, metadata=closed(name=TEXT),
    spec=closed(nprocPerNode=TEXT, elasticPolicy=ELASTIC, pytorchReplicaSpecs=closed(Worker=REPLICAS)),
)  # fmt: skip


def read(name: str) -> Any:
    return yaml.safe_load((CLUSTER / name).read_text())


def pods(found: Any) -> Iterator[dict[str, Any]]:
    if isinstance(found, dict):
        if "containers" in found:
            yield found
        for value in found.values():
            yield from pods(value)
    elif isinstance(found, list):
        for value in found:
            yield from pods(value)


@pytest.mark.parametrize(("name", "schema"), [("kuberay.yaml", RAY_JOB), ("pytorchjob.yaml", PYTORCH_JOB)])
def test_kubernetes_files_have_the_fields_of_their_kind(name: str, schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(schema).validate(read(name))
    for pod in pods(read(name)):
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            # A pod that may take more than it asked for is the first to be evicted.
            assert container["resources"]["limits"] == container["resources"]["requests"]


def test_the_ray_job_starts_a_command_that_penstock_knows() -> None:
    words = shlex.split(read("kuberay.yaml")["spec"]["entrypoint"])
    command = typer.main.get_command(app).commands[words[1]]  # type: ignore[attr-defined]
    given = command.make_context("train", words[2:]).params
    assert (given["workers"], given["engine"], given["cluster"]) == (4, "ray", "auto")
    groups = read("kuberay.yaml")["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert sum(group["replicas"] for group in groups) >= given["workers"]


def parsed(words: list[str]) -> Any:
    """A command of torchrun as torchrun understands it."""
    run = pytest.importorskip("torch.distributed.run")
    assert words[0] == "torchrun"
    return run.get_args_parser().parse_args(words[1:])


def test_the_pytorch_job_starts_torchrun_on_the_example() -> None:
    (pod,) = pods(read("pytorchjob.yaml"))
    asked = parsed(pod["containers"][0]["command"])
    assert (ROOT / "examples" / Path(asked.training_script).name).exists()
    assert {"name": "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "value": "1"} in pod["containers"][0]["env"]


def test_the_slurm_script_hands_torchrun_the_nodes_that_slurm_gave(tmp_path: Path) -> None:
    # Stand-ins for Slurm's two commands: one names a host, the other shows what it was to start.
    stand_ins = {"scontrol": "printf 'node1\\nnode2\\n'", "srun": 'printf "%s\\n" "$@" && env'}
    for name, does in stand_ins.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{does}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "node[1-4]", "SLURM_JOB_NUM_NODES": "4"}
    done = subprocess.run(
        ["bash", str(CLUSTER / "slurm.sbatch")], env={**env, "SLURM_JOB_ID": "7"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in lines
    words = lines[: next(at for at, line in enumerate(lines) if "=" in line and not line.startswith("-"))]
    asked = parsed(words)
    assert (asked.nnodes, asked.nproc_per_node, asked.rdzv_endpoint) == ("4", "2", "node1:29400")
    assert asked.training_script_args == ["--data", "/shared/rows.csv", "--checkpoint", "/shared/runs/rows"]
