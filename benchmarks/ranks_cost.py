"""What the guard costs on two ranks, and what a sharded model saves.

Run: python -m benchmarks.ranks_cost [PART ...] [--seconds N] [--millions N] [--dry]    default: both, 40 s, 100 million
Parts are "overhead" and "memory" (of so many million parameters); one that is not named keeps its numbers and date.
Covers: a step of `ps.Guard` over DistributedDataParallel against a plain loop over it, by turns in the same two
processes; and the peak memory of a rank under the guard with the model copied (DDP) and sharded (FSDP2), with glibc as
it is and told to give memory back.
Does not cover: networks. Both ranks are on this machine, one thread each, and talk over loopback (gloo).

A round is plain, guarded, guarded, plain; rank 0's clock counts, since ranks end a step together, and its processor
time. Told are the mean of the middle half of the rounds and its 95 % bootstrap interval. As in guard_overhead.py, half
of the time goes to whole steps, half to the same network behind a pooling of 8x8, where a short step shows what the
guard costs in microseconds. Memory is the highest resident set of a rank, less what
it held before the model was made.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]  # so that it also runs as a file

from benchmarks.guard_overhead import GUARDED, PLAIN, ROUND, TARGET, interval, middle, verdict  # noqa: E402
from benchmarks.report import machine  # noqa: E402

RESULTS = ROOT / "benchmarks/results/ranks_cost.json"
BATCH, WARM_ROUNDS = 32, 3
GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "1048576"}
WAYS, PARTS = ("copied", "sharded"), ("overhead", "memory")


def overhead(seconds: float) -> dict[str, Any]:
    """What the guard adds to a whole step, and to a short one."""
    return {"whole": by_turns(seconds / 2, pooled=False), "short": by_turns(seconds / 2, pooled=True)}


def by_turns(seconds: float, *, pooled: bool) -> dict[str, Any]:
    """By turns, a plain step over DDP and a guarded one: what the rounds of rank 0 took."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from penstock.guard import Guard

    rng = np.random.default_rng(dist.get_rank())
    x, y = rng.normal(size=(BATCH, 3, 32, 32)).astype(np.float32), rng.integers(0, 10, BATCH)
    loss_fn = torch.nn.CrossEntropyLoss()

    def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        layers: list[torch.nn.Module] = [torch.nn.AvgPool2d(8)] if pooled else []
        for inputs in (3, 32, 32, 32):
            layers += [torch.nn.Conv2d(inputs, 32, 3, padding=1), torch.nn.ReLU()]
        whole = torch.nn.Sequential(
            *layers, torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(512, 10)
        )
        model = DistributedDataParallel(whole)
        return model, torch.optim.AdamW(model.parameters(), fused=True)

    model, optimizer = make()

    def plain() -> None:
        optimizer.zero_grad()
        loss_fn(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimizer.step()

    guard = Guard(*make())
    sides = plain, lambda: guard.step((x, y), loss_fn)
    rounds: list[list[tuple[float, float]]] = []
    ends_s = time.perf_counter() + seconds
    more = torch.ones(1)
    while more.item():
        turns = []
        for side in ROUND:
            dist.barrier()
            began_s = time.perf_counter(), time.process_time()
            sides[side]()
            turns.append((time.perf_counter() - began_s[0], time.process_time() - began_s[1]))
        rounds.append(turns)
        more[0] = time.perf_counter() < ends_s
        dist.broadcast(more, 0)
    turns_s, sides_of = np.array(rounds[WARM_ROUNDS:]), np.array(ROUND)
    return {"rounds": len(turns_s)} | {
        clock: compared(*(turns_s[:, sides_of == side, n].mean(axis=1) for side in (PLAIN, GUARDED)))
        for n, clock in enumerate(("wall", "cpu"))
    }


def compared(plain_s: np.ndarray, guarded_s: np.ndarray) -> dict[str, Any]:
    """Guarded rounds against plain ones."""
    ratios, costs_us = guarded_s / plain_s, 1e6 * (guarded_s - plain_s)
    return {
        "plain_step_ms": round(1e3 * float(middle(plain_s)), 3),
        "ratio": round(float(middle(ratios)), 4),
        "interval": [round(end, 4) for end in interval(ratios)],
        "cost_us": round(float(middle(costs_us))),
        "cost_interval_us": [round(end) for end in interval(costs_us)],
    }


def peak(way: str, millions: int) -> dict[str, Any]:
    """A few guarded steps of a stack of square layers; the rank's highest memory and its losses."""
    import torch
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from penstock.guard import Guard

    before = resident()
    layers = 8
    width = int((millions * 1e6 / layers) ** 0.5)
    torch.manual_seed(0)
    blocks = [torch.nn.Sequential(torch.nn.Linear(width, width, bias=False), torch.nn.Tanh()) for _ in range(layers)]
    model: Any = torch.nn.Sequential(*blocks)
    params = sum(p.numel() for p in model.parameters())
    if way == "copied":
        model = DistributedDataParallel(model)
    else:
        for block in blocks:
            fully_shard(block)
        fully_shard(model)
    guard = Guard(model, torch.optim.AdamW(model.parameters(), 1e-4, fused=True))
    rng = np.random.default_rng(0)
    losses = []
    for _ in range(3):
        batch = tuple(rng.normal(size=(8, width)).astype(np.float32) for _ in range(2))
        losses.append(float(guard.step(batch, torch.nn.functional.mse_loss)))
    status = Path("/proc/self/status").read_text().splitlines()
    high = int(next(line for line in status if line.startswith("VmHWM")).split()[1]) * 1024
    return {"params": params, "peak_nbytes": high - before, "losses": losses}


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def rank(case: str, amount: float) -> None:
    """One rank of a case; rank 0 prints what it found."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = overhead(amount) if case == "overhead" else peak(case, int(amount))
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    os._exit(0)  # gloo's end is no part of this


def run(case: str, amount: float, **settings: str) -> dict[str, Any]:
    """Both ranks of a case in processes of their own."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    env = {**os.environ, **settings, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    env |= {"LOCAL_WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-W", "ignore", __file__, "--rank", case, str(amount)]
    ranks = [
        subprocess.Popen(argv, env={**env, "RANK": str(n), "LOCAL_RANK": str(n)}, stdout=-1, stderr=-1, text=True)
        for n in range(2)
    ]
    out, errors = zip(*(one.communicate() for one in ranks), strict=True)
    if any(one.returncode for one in ranks):
        raise SystemExit(f"{case} failed:\n{errors[0][-2000:]}\n{errors[1][-2000:]}")
    found: dict[str, Any] = json.loads(out[0].splitlines()[-1])
    print(case, settings, json.dumps(found), flush=True)
    return found


def step_row(clock: str, whole: dict[str, Any], short: dict[str, Any]) -> str:
    """One clock's line in the table of steps."""
    step_us = 1e3 * whole["plain_step_ms"]
    added = [1 + us / step_us for us in (short["cost_us"], *short["cost_interval_us"])]
    us, (us_low, us_high), (low, high) = short["cost_us"], short["cost_interval_us"], whole["interval"]
    return (
        f"| {clock} | {whole['plain_step_ms']:.1f} | {us} ({us_low} to {us_high}) | {added[0]:.3f} ({added[1]:.3f} to "
        f"{added[2]:.3f}) | {verdict(added[1:])} | {whole['ratio']:.3f} ({low:.3f} to {high:.3f}) | "
        f"{verdict(whole['interval'])} |"
    )


def page(found: dict[str, Any]) -> str:
    """The results for people."""
    cost, held = found["overhead"]["found"], found["memory"]["found"]
    lines = [
        f"| {name} | {way} | {held[name][way]['peak_nbytes'] / 1e6:,.0f} |"
        for name in held for way in WAYS
    ]  # fmt: skip
    steps = [step_row(clock, cost["whole"][clock], cost["short"][clock]) for clock in ("wall", "cpu")]
    params = held["glibc as it is"]["copied"]["params"] / 1e6
    return (
        "# Two ranks: what the guard costs, what sharding saves\n\n"
        "Both ranks on one machine, one thread each, gloo over loopback. Written by `benchmarks/ranks_cost.py`.\n\n"
        f"**A step.** `ps.Guard` over DistributedDataParallel against the plain loop, {cost['whole']['rounds']} rounds "
        f"of whole steps and {cost['short']['rounds']} of short ones, where the cost is measured. The aim is at most "
        f"{TARGET}; met: the whole interval is within it. {_where(found['overhead'])}.\n\n"
        "| time | plain step, ms | cost, us | (step + cost) / step | | whole steps, guarded / plain | |\n"
        "|---|---|---|---|---|---|---|\n" + "\n".join(steps) + "\n\n"
        f"**Memory.** {params:,.0f} million parameters, AdamW, guarded steps. The highest memory of a rank, less what "
        f"it held before the model was made. {_where(found['memory'])}.\n\n"
        "| allocator | model | MB per rank |\n|---|---|---|\n"
    ) + "\n".join([*lines, ""])


def _where(part: dict[str, Any]) -> str:
    where = part["machine"]
    return f"{where['cores']} cores, {where['cpu']}, {part['date']}, load {part['load']}"


def main() -> None:
    """Measure both, and write the page."""
    parser = argparse.ArgumentParser(description="What the guard costs on two ranks, and what a sharded model saves.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=" and ".join(PARTS))
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--millions", type=int, default=100)
    parser.add_argument("--dry", action="store_true", help="print the numbers; write no results")
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank is not None:
        rank(asked.rank[0], float(asked.rank[1]))
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for part in asked.parts or PARTS:
        measured = run("overhead", asked.seconds) if part == "overhead" else memory(asked.millions)
        when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
        found[part] = {"found": measured, "machine": machine(), "load": round(os.getloadavg()[0], 1), "date": when}
    if not asked.dry:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(page(found))


def memory(millions: int) -> dict[str, Any]:
    """The highest memory of a rank, by allocator and way; all must learn the same."""
    found: dict[str, Any] = {}
    for name, settings in (("glibc as it is", {}), ("glibc gives back", GIVES_BACK)):
        found[name] = {way: run(way, millions, **settings) for way in WAYS}
    losses = [found[name][way]["losses"] for name in found for way in WAYS]
    if not np.allclose(losses, losses[0], rtol=1e-4):
        raise SystemExit(f"the ways of dividing a model do not learn the same: {losses}")
    return found


if __name__ == "__main__":
    main()
