"""The files for clusters say what they must, and start scripts that exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

FOLDER = Path(__file__).parents[3] / "examples" / "cluster"


def test_the_slurm_script_is_a_shell_script_and_starts_an_example_that_exists() -> None:
    path = FOLDER / "slurm.sbatch"
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
    script = re.search(r"(examples/\w+\.py)", path.read_text())
    assert script and (FOLDER.parents[1] / script[1]).exists()


def test_the_ray_job_asks_for_as_many_workers_as_it_starts() -> None:
    job = yaml.safe_load((FOLDER / "kuberay.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    workers = re.search(r"--workers (\d+)", job["spec"]["entrypoint"])
    groups = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert workers and int(workers[1]) == sum(group["replicas"] for group in groups)
    for group in [job["spec"]["rayClusterSpec"]["headGroupSpec"], *groups]:
        container = group["template"]["spec"]["containers"][0]
        assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"]


def test_the_training_operators_job_has_workers_with_a_memory_limit() -> None:
    job = yaml.safe_load((FOLDER / "pytorchjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    container = worker["template"]["spec"]["containers"][0]
    assert job["spec"]["elasticPolicy"]["maxReplicas"] == worker["replicas"]
    assert container["name"] == "pytorch" and "memory" in container["resources"]["limits"]
    assert (FOLDER.parent / Path(container["command"][1]).name).exists()
