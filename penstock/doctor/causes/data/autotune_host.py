"""AUTOTUNE sizes its buffers by the machine, not by the container.

Covers: tf.data with AUTOTUNE under a limit that is much smaller than the machine's memory.
Does not cover: fixed prefetch sizes (workers/prefetch_product.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues

AUTOTUNE = -1
HIDDEN = 0.3
"""The share of what was taken that names of the script may hold where tf.data holds the rest."""


def live(facts: Clues) -> Sign | None:
    calls = [
        c
        for verb in ("prefetch", "map", "interleave")
        for c in facts.calls(f"tf.data.{verb}")
        if c.get("value") == AUTOTUNE
    ]
    host = max((s["slow"].get("MemAvailable", 0) for s in facts.evidence.samples if "slow" in s), default=0)
    if not calls or not facts.died or host < 2 * facts.limit or facts.shape.peak < 0.6 * facts.limit:
        return None
    text = (
        f"AUTOTUNE may use half of the machine's free memory; the limit is {host / facts.limit:.0f} times "
        f"smaller than that"
    )
    ahead = [call for call in calls if call["what"] == "tf.data.prefetch"]
    others = facts.calls("tf.data.shuffle") or facts.calls("tf.data.cache") or facts.count("step")
    hidden = facts.visible < HIDDEN  # its buffers have no name in Python
    return Sign(0.7 if ahead and hidden and not others else 0.45, (text,), (ahead or calls)[0]["where"])


def script(script: Script) -> Iterator[Found]:
    for call in script.calls(".prefetch", ".map", ".interleave"):
        for node in [*call.args, *(item.value for item in call.keywords)]:
            if script.name(node).endswith(".AUTOTUNE") and script.imports("tensorflow"):
                yield Found(script.place(call), "AUTOTUNE is sized by the machine, not by the container", sure=False)
                break


CAUSE = Cause(
    name="autotune-host",
    title="AUTOTUNE sizes its buffers by the machine, not by the container",
    why="tf.data's budget is half of the memory that the machine has free; a container's limit is not read.",
    cure="options.autotune.ram_budget = bytes, options.autotune.initial_parallelism = 1; or small fixed numbers.",
    live=live,
    script=script,
    instead="ps.read_*: reads the container's limit",
)
