"""Many files are read at once, each with a buffer of its own.

Covers: tf.data's interleave with a large cycle_length over datasets that buffer, batch or prefetch inside.
Does not cover: prefetch outside (autotune_host.py, workers/prefetch_product.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.patch.edits import SetKeyword, span
from penstock.doctor.static.script import Script, keyword
from penstock.doctor.verdict.facts import Clues

MANY = 16
INNER = ("prefetch", "shuffle", "cache", "batch")


def live(facts: Clues) -> Sign | None:
    calls = [c for c in facts.calls("tf.data.interleave") if isinstance(c.get("value"), int) and c["value"] >= MANY]
    if not calls or facts.shape.peak < 0.6 * facts.limit:
        return None
    inner = [c for name in INNER for c in facts.calls(f"tf.data.{name}") if c["where"] != calls[0]["where"]]
    text = f"interleave keeps {calls[-1]['value']} inner datasets open at once"
    return Sign(0.85 if inner else 0.5, (text,), calls[-1]["where"])


def script(script: Script) -> Iterator[Found]:
    if not script.imports("tensorflow"):
        return
    for call in script.calls(".interleave"):
        cycle = script.value(keyword(call, "cycle_length"))
        if isinstance(cycle, int) and cycle >= MANY:
            where = span(script.text, call)
            edits: tuple[SetKeyword, ...] = (SetKeyword(where, "cycle_length", "4"),)
            if isinstance(script.value(keyword(call, "num_parallel_calls")), int):  # may not be more than the cycle
                edits += (SetKeyword(where, "num_parallel_calls", "4"),)
            text = f"interleave over {cycle} datasets: {cycle} times what each of them buffers"
            yield Found(script.place(call), text, edits=edits, near=4, sure=False)


CAUSE = Cause(
    name="interleave-buffers",
    title="Many files are read at once, each with its own buffers",
    why="interleave keeps cycle_length inner datasets open; what each of them shuffles, batches or prefetches adds up.",
    cure="A small cycle_length (4 to 8), and buffers outside of interleave rather than inside.",
    live=live,
    script=script,
    instead="ps.read_tfrecords('part-*').shuffle(seed=7): one byte budget for all files",
)
