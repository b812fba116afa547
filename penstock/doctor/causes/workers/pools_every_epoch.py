"""New worker processes every epoch.

Covers: pools made in a loop, DataLoader workers that start anew for every epoch.
Does not cover: one pool that is kept.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues

POOLS = ("multiprocessing.Pool", "multiprocessing.pool.Pool", "concurrent.futures.ProcessPoolExecutor", "?.Pool")


def live(facts: Clues) -> Sign | None:
    pools = facts.count("pools")
    alive = max((len(sample["procs"]) for sample in facts.evidence.samples), default=0)
    if pools < 3 or alive < 4 or facts.worker_share < 0.3:
        return None
    calls = facts.calls("pool")
    held = int(facts.worker_share * facts.shape.peak)
    text = f"{pools} pools were started; up to {alive - 1} workers were alive at once and held {size(held)}"
    return Sign(0.88, (text,), calls[-1]["where"] if calls else "", held)


def script(script: Script) -> Iterator[Found]:
    for call in script.calls(*POOLS):
        if script.in_loop(call) is None or script.under(call, "Pool", "ProcessPoolExecutor"):
            continue
        yield Found(script.place(call), "a pool of processes is started in every turn of a loop", near=4)


CAUSE = Cause(
    name="pools-every-epoch",
    title="New worker processes in every epoch, and the old ones stay",
    why="A pool that is not closed keeps its processes, each with its own copy of what it has touched.",
    cure="Make one pool before the loop, or close it: `with Pool(n) as pool:`. DataLoader: persistent_workers=True.",
    live=live,
    script=script,
)
