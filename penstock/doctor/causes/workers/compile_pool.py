"""torch.compile's pool of compiler processes.

Covers: the spike at the start, from as many compile workers as the machine has processors.
Does not cover: recompilation (keeping/retracing.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues


def live(facts: Clues) -> Sign | None:
    names = [
        p["name"]
        for s in facts.evidence.samples
        for p in s["procs"]
        if "compile" in p["name"] or "inductor" in p["name"]
    ]
    pools = facts.calls("compile.pool")
    if not (names or pools) or facts.worker_share < 0.4:
        return None
    count = max((int(call.get("workers") or 0) for call in pools), default=len(set(names)))
    held = f"torch.compile's {count} compilers held {facts.worker_share:.0%} of the memory near the peak"
    return Sign(
        0.9 if pools and facts.died else 0.7,
        (held,),
        pools[-1]["where"] if pools else "",
        nbytes=int(facts.worker_share * facts.shape.peak),
    )


def script(script: Script) -> Iterator[Found]:
    for call in script.calls("torch.compile"):
        if "TORCHINDUCTOR_COMPILE_THREADS" not in script.text:
            yield Found(script.place(call), "torch.compile starts a process per processor of the machine", sure=False)


CAUSE = Cause(
    name="compile-pool",
    title="torch.compile starts many compiler processes",
    why=(
        "It starts one process per processor of the machine, of several hundred MB each, whatever the container allows."
    ),
    cure="TORCHINDUCTOR_COMPILE_THREADS=1 in the environment.",
    live=live,
    script=script,
    env={"TORCHINDUCTOR_COMPILE_THREADS": "1"},
)
