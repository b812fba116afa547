"""Two ranks of one job: when memory runs out on one of them, both take the step again in the same parts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

RANK = """
import json, os, sys
import numpy as np, torch
import torch.distributed as dist
from penstock.core.events import events
from penstock.guard import Guard
torch.set_num_threads(1)
rank, faulty = int(os.environ["RANK"]), sys.argv[2] == "faulty"
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[1]}", rank=rank, world_size=2)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), 0.01, fused=True)
guard = Guard(model, optimizer)
rng = np.random.default_rng(10 + rank)
now, left, micros = [0], {"forward": 2, "apply": 2}, []

def fail(phase, steps, on):
    # forward fails on rank 1 at step 2 and 3, the optimizer on rank 0 at step 5 and 6
    if faulty and rank == on and now[0] in steps and left[phase]:
        left[phase] -= 1
        raise MemoryError(f"injected in {phase}")

def loss_fn(model, batch):
    fail("forward", (2, 3), 1)
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

step = optimizer.step
def torn(*args):
    step()
    fail("apply", (5, 6), 0)
optimizer.step = torn

for now[0] in range(9):
    batch = rng.normal(size=(8, 6)).astype("f"), rng.integers(0, 4, 8)
    guard.step(batch, loss_fn)
    micros.append(guard.micro_batch)
weights = [p.detach().double().sum().item() for p in model.parameters()]
ooms = [e.values["text"] for e in events.recent if e.kind == "guard.oom"]
print(json.dumps({"weights": weights, "micros": micros, "ooms": ooms}), flush=True)
dist.destroy_process_group()
"""


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def run_ranks(script: str, *words: str, **settings: str) -> list[dict]:
    """What two ranks of a script printed on their last lines. Its words are a free port and those given."""
    argv = [sys.executable, "-c", script, str(free_port()), *words]
    settings = {"PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **settings}
    ranks = [
        subprocess.Popen(argv, env={**os.environ, **settings, "RANK": str(n)}, stdout=-1, stderr=-1, text=True)
        for n in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=800) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], [err[-2000:] for _, err in outputs]
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


@pytest.mark.timeout(1800)
def test_ranks_agree_and_nothing_is_applied_twice():
    calm, faulty = run_ranks(RANK, "calm"), run_ranks(RANK, "faulty")
    assert calm[0]["weights"] == calm[1]["weights"] and not calm[0]["ooms"]
    assert faulty[0]["weights"] == faulty[1]["weights"]
    assert faulty[0]["micros"] == faulty[1]["micros"] and min(faulty[0]["micros"]) < 8
    assert faulty[0]["weights"] == pytest.approx(calm[0]["weights"], rel=1e-5)
    assert len(faulty[0]["ooms"]) == len(faulty[1]["ooms"]) == 4
    assert "another rank ran out of memory" in faulty[0]["ooms"]
