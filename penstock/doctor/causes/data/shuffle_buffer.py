"""A shuffle buffer counted in elements.

Covers: tf.data's shuffle(buffer_size) whose elements are large, and buffer_size of the whole dataset.
Does not cover: torch's samplers (workers/sampler_lists.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.patch.edits import Replace, span
from penstock.doctor.static.script import Script, argument
from penstock.doctor.verdict.facts import Clues

SHARE = 0.1
"""The share of the limit that a buffer may take."""


def live(facts: Clues) -> Sign | None:
    best = None
    for call in facts.calls("tf.data.shuffle"):
        count = call.get("length")
        length = min(int(call.get("value") or 0), count if isinstance(count, int) and count >= 0 else 1 << 62)
        nbytes = length * int(call["element"])
        if nbytes > SHARE * 2 * facts.limit and (best is None or nbytes > best[0]):
            best = (nbytes, call)
    if best is None or facts.shape.peak < 0.5 * facts.limit:
        return None
    nbytes, call = best
    text = f"shuffle({call['value']}) of elements of {size(call['element'])} fills {size(nbytes)}"
    return Sign(0.92, (text,), call["where"], nbytes)


def script(script: Script) -> Iterator[Found]:
    if not script.imports("tensorflow"):
        return
    for call in script.calls(".shuffle"):
        node = argument(call, 0, "buffer_size")
        length = script.value(node)
        whole = isinstance(node, ast.Call) and script.name(node.func) in ("len", "?.cardinality")
        if node is not None and (whole or (isinstance(length, int) and length >= 5_000)):
            shown = "the whole dataset" if whole else f"{length} elements"
            edit = Replace(span(script.text, node), "256")
            yield Found(script.place(call), f"shuffle holds {shown}, whatever their size", edits=(edit,), sure=False)


CAUSE = Cause(
    name="shuffle-buffer",
    title="The shuffle buffer is counted in elements, not in bytes",
    why="shuffle(n) holds n decoded elements; it fills at the start of each epoch.",
    cure=(
        "Shuffle names before decoding, and keep the buffer of decoded elements small. A small buffer mixes less: "
        "where the data is sorted, shuffle names first or use ps, which mixes all of it within a byte budget."
    ),
    live=live,
    script=script,
    instead="ps.read_*(...).shuffle(seed=7): bounded in bytes, mixes the whole dataset",
)
