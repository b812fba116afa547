"""The device's memory is in pieces.

Covers: torch's message that reserved but unallocated memory is large.
Does not cover: a step that is simply too big (step/step_too_big.py).
"""

from __future__ import annotations

import re

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Sign
from penstock.doctor.verdict.facts import Clues

_TRIED = re.compile(r"Tried to allocate ([\d.]+ [KMGT]iB)")
_IDLE = re.compile(r"([\d.]+ [KMGT]iB) is reserved by PyTorch but unallocated")


def binary(text: str) -> int:
    """'1.50 GiB' as bytes."""
    number, unit = text.split()
    return int(float(number) * 1024 ** ("KMGT".index(unit[0]) + 1))


def live(facts: Clues) -> Sign | None:
    said = facts.says(r"CUDA out of memory|HIP out of memory")
    tried, idle = _TRIED.search(said), _IDLE.search(said)
    if not tried or not idle or binary(idle[1]) < binary(tried[1]):
        return None
    text = f"{size(binary(idle[1]))} lay idle in pieces while {size(binary(tried[1]))} were asked for"
    return Sign(0.9, (text, said[:160]), nbytes=binary(idle[1]))


CAUSE = Cause(
    name="fragmentation",
    title="The device's memory is fragmented",
    why="torch's allocator holds free blocks of other sizes; none of them is large enough.",
    cure="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and few distinct shapes (bucketing, drop_last).",
    live=live,
    env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    instead="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py",
)
