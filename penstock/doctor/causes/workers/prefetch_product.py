"""Prefetch times workers times batch.

Covers: DataLoader with many workers, a large prefetch_factor and large batches; many batches of tf.data; a queue of
the script without a bound.
Does not cover: tf.data's AUTOTUNE (data/autotune_host.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.patch.edits import Replace, SetKeyword, span
from penstock.doctor.static.script import Script, keyword
from penstock.doctor.verdict.facts import Clues

MANY = 16


def live(facts: Clues) -> Sign | None:
    waiting = next((n for n in facts.names if n.type == "collections.deque" and n.name.endswith(".queue")), None)
    if waiting is not None and waiting.last > 0.2 * facts.limit:
        text = f"{waiting.last_len} entries wait in {waiting.name} ({size(waiting.last)})"
        return Sign(0.9, (text, "more is put into the queue than is taken out"), nbytes=waiting.last)
    if sign := _tensorflow(facts):
        return sign
    best = None
    for call in facts.calls("DataLoader"):
        product = int(call.get("workers") or 0) * int(call.get("prefetch") or 0)
        if product >= MANY and (best is None or product > best[0]):
            best = (product, call)
    shmem = max(
        (s.get("group", {}).get("shmem", 0) or sum(p["shmem"] for p in s["procs"]) for s in facts.evidence.samples),
        default=0,
    )
    if best is None or shmem < 0.2 * facts.limit:
        return None
    text = f"{best[0]} batches are prefetched by {best[1]['workers']} workers; shared memory reached {size(shmem)}"
    return Sign(0.9, (text,), best[1]["where"], shmem)


def _tensorflow(facts: Clues) -> Sign | None:
    """Elements that tf.data's prefetch keeps: what its spec leaves open is taken to be the batch."""
    rows = max((int(call.get("value") or 1) for call in facts.calls("tf.data.batch")), default=1)
    for call in facts.calls("tf.data.prefetch"):
        count, element = int(call.get("value") or 0), int(call.get("element") or 0)
        nbytes = count * element * rows
        if count >= MANY and facts.died and nbytes > 0.5 * facts.limit and element < 0.5 * facts.limit:
            text = f"prefetch({count}) keeps {count} batches of {size(element * rows)}"
            return Sign(0.85, (text,), call["where"], min(nbytes, facts.taken))
    return None


def script(script: Script) -> Iterator[Found]:
    for call in script.calls("queue.Queue", "multiprocessing.Queue", "queue.SimpleQueue"):
        if not call.args and not call.keywords and script.functions.get("put") is None and _is_fed(script):
            yield Found(script.place(call), "a queue without a bound takes whatever its producer makes", sure=False)
    for call in script.calls(".prefetch") if script.imports("tensorflow") else ():
        count = script.value(call.args[0]) if call.args else None
        if isinstance(count, int) and count >= MANY:
            two = Replace(span(script.text, call.args[0]), "2")
            yield Found(script.place(call), f"prefetch keeps {count} elements", edits=(two,), sure=False)
    for call in script.calls("torch.utils.data.DataLoader"):
        workers, ahead = script.value(keyword(call, "num_workers")), script.value(keyword(call, "prefetch_factor"))
        if isinstance(workers, int) and isinstance(ahead, int) and workers * ahead >= MANY:
            fewer = SetKeyword(span(script.text, call), "prefetch_factor", "1")
            yield Found(
                script.place(call),
                f"{workers} workers x {ahead} batches each = {workers * ahead} batches in memory",
                edits=(fewer,),
                near=4,
                sure=False,
            )


def _is_fed(script: Script) -> bool:
    """Whether a loop puts things into a queue."""
    return any(script.in_loop(call) is not None for call in script.calls(".put", ".put_nowait"))


CAUSE = Cause(
    name="prefetch-product",
    title="Prefetch x workers x batch is more than the limit",
    why="Each worker prepares prefetch_factor batches ahead, all in shared memory, which counts towards the limit.",
    cure="prefetch_factor=1 or 2 and fewer workers; queue.Queue(maxsize=4); penstock's read-ahead is bounded in bytes.",
    live=live,
    script=script,
    instead="ps.read_*(...).torch(): read-ahead is bounded in bytes",
)
