"""/dev/shm is full.

Covers: the bus error of DataLoader workers, and how much of /dev/shm was in use.
Does not cover: SIGBUS of a mapped file (a truncated or remote file), which leaves /dev/shm half empty.
"""

from __future__ import annotations

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Sign
from penstock.doctor.verdict.facts import Clues


def live(facts: Clues) -> Sign | None:
    said = facts.says(
        r"insufficient shared memory \(shm\)|unable to write to file </torch_|No space left on device.*torch_"
    )
    seen = [s["slow"]["shm"] for s in facts.evidence.samples if s.get("slow", {}).get("shm")]
    total = seen[-1][1] if seen else (facts.evidence.run.get("shm") or [0, 0])[1]
    if said:
        return Sign(0.95, (said, f"/dev/shm has {size(total)} in all"), nbytes=total)
    used = max((use for use, _ in seen), default=0)
    if total and used > 0.9 * total and facts.ending.kind != "finished":
        return Sign(0.7, (f"/dev/shm was used to {used / total:.0%} of {size(total)}",), nbytes=used)
    return None


CAUSE = Cause(
    name="shm-too-small",
    title="/dev/shm is too small",
    why="DataLoader workers hand batches over in /dev/shm; a container has 64 MB of it unless told otherwise.",
    cure=(
        "docker run --shm-size=2g (it counts towards the memory limit), an emptyDir of medium Memory in "
        "Kubernetes, fewer workers, or num_workers=0."
    ),
    live=live,
    instead="ps.read_*(...).torch(): threads, no shared memory",
)
