"""Ranks, agents and whole nodes of one torchrun job, killed at random moments with SIGKILL.

`python -m tests.integration.rank_kills FOLDER KILLS` prints one line of JSON. Two nodes of one rank each, both on this
machine; the store in which they meet is a third party, so that either may die. Torch's own agents start the ranks, as
torchrun does. The frameworks are imported once, and all agents and ranks are forks of that process: twenty kills cost
seconds of training and not forty imports.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

os.environ |= {"KERAS_BACKEND": "torch", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "lo"}
os.environ |= {"NOTED_ROWS": "4801", "NOTED_PAUSE_S": "0.1"}  # there are rows left when a node that died is back

import keras  # noqa: F401
import torch
import torch.distributed.nn
from torch.distributed import TCPStore
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from tests.integration import noted_job

VICTIMS = ("rank", "agent", "node")
NODES = 2
MEETING = {"is_host": False, "last_call_timeout": 2, "timeout": 120}
"""A dead agent is given up after 15 s, by torch's default. After 3 s, agents that a busy machine held up were given up
too, and both nodes trained on as jobs of their own."""
QUIET_S = 120.0
"""So long may a job take from a kill to its next steps."""


def agent(folder: Path, port: int, node: int) -> int:
    """An agent with its rank, in a process of its own."""
    pid = os.fork()
    if pid:
        return pid
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    config = LaunchConfig(
        min_nodes=1, max_nodes=NODES, nproc_per_node=1, run_id="kills", rdzv_backend="c10d",
        rdzv_endpoint=f"127.0.0.1:{port}", rdzv_configs=MEETING,
        max_restarts=100, monitor_interval=0.1, start_method="fork", local_addr="127.0.0.1", shutdown_timeout=10,
    )  # fmt: skip
    try:
        elastic_launch(config, rank)(folder, node)
    except BaseException as error:
        print("agent", node, repr(error), flush=True)
        os._exit(1)
    os._exit(0)


def rank(folder: Path, node: int) -> None:
    """What an agent starts: the job, which says where it runs."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # until `join` sees to it: the agent may die before
    (folder / f"node-{node}").write_text(str(os.getpid()))
    noted_job.main(folder)


def taken(folder: Path, ranks: int) -> int:
    """How many steps have been written down by at least so many ranks together."""
    return len({(step, start) for step, start, *_ in noted_job.noted(folder) if int(start.rpartition(":")[2]) >= ranks})


def running(folder: Path, agents: list[int]) -> list[int]:
    """The nodes whose agents are alive. One that comes when the job is done finds its doors closed."""
    alive = []
    for node, pid in enumerate(agents):
        ended, status = os.waitpid(pid, os.WNOHANG) if pid else (1, 0)
        if not ended:
            alive.append(node)
        elif status and not (folder / "done-0").exists():
            raise SystemExit(f"the agent of node {node} ended with {status}")
        else:
            agents[node] = 0
    return alive


def kill(folder: Path, who: str, node: int, agents: list[int]) -> None:
    """Kill, and start what a cluster would start again; an agent starts its rank by itself."""
    pid = int((folder / f"node-{node}").read_text())
    if who != "rank":
        os.kill(agents[node], signal.SIGKILL)
        os.waitpid(agents[node], 0)
    if who != "agent":
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            print(f"rank {pid} of node {node} was gone already", file=sys.stderr)


def main(folder: Path, kills: int) -> None:
    draw, began_s = random.Random(5), time.monotonic()
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    agents = [agent(folder, store.port, node) for node in range(NODES)]
    killed: Counter[str] = Counter()
    worst_s = 0.0
    while sum(killed.values()) < kills:
        # Mostly when all nodes are there again, now and then while one of them goes on alone.
        ranks, since_s = draw.choice((1, NODES, NODES)), time.monotonic()
        enough = taken(folder, ranks) + draw.randint(2, 8)
        while taken(folder, ranks) < enough:
            if not running(folder, agents) or time.monotonic() - since_s > QUIET_S:
                raise SystemExit(
                    f"after {dict(killed)} the job stands still: {(folder / 'log.txt').read_text()[-3000:]}"
                )
            time.sleep(0.05)
        worst_s = max(worst_s, time.monotonic() - since_s)
        who, node = draw.choice(VICTIMS), draw.randrange(NODES)
        kill(folder, who, node, agents)
        killed[who] += 1
        if who != "rank":
            agents[node] = agent(folder, store.port, node)
    while running(folder, agents):
        time.sleep(0.1)
    rows, again = noted_job.rows_once(folder)
    worlds = {start.rpartition(":")[2] for _, start, _, _ in noted_job.noted(folder)}
    told = {
        "killed": dict(killed), "rows": len(rows), "of": noted_job.ROWS,
        "each_once": rows == Counter(range(noted_job.ROWS)),
        "steps_again": again, "worlds": sorted(worlds), "slowest_recovery_s": round(worst_s, 1),
        "seconds": round(time.monotonic() - began_s), "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1),
        "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
