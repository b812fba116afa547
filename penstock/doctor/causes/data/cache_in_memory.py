"""Decoded samples are cached in memory.

Covers: tf.data's cache() without a file.
Does not cover: caches written by hand (keeping/unbounded_cache.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.patch.edits import Import, Replace, span
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues


def live(facts: Clues) -> Sign | None:
    for call in facts.calls("tf.data.cache"):
        if call.get("value"):
            continue
        count, element = call.get("length"), int(call["element"])
        nbytes = element * count if isinstance(count, int) and count > 0 else 0
        if facts.shape.peak < 0.5 * facts.limit or (nbytes and nbytes < 0.3 * facts.limit):
            continue
        shown = f" of {size(nbytes)}" if nbytes else ""
        return Sign(
            0.9 if nbytes else 0.75, (f"cache(){shown} keeps every decoded element in memory",), call["where"], nbytes
        )
    return None


def script(script: Script) -> Iterator[Found]:
    if not script.imports("tensorflow"):
        return
    for call in script.calls(".cache"):
        if not call.args and not call.keywords:
            file = 'tempfile.mkdtemp(prefix="tfdata-") + "/cache"'
            code = script.text.splitlines()[call.func.end_lineno - 1]  # type: ignore[operator]
            where = span(script.text, call)
            inner = _source(script.text, span(script.text, call.func))
            edits = (Replace(where, f"{inner}({file})"), Import("import tempfile"))
            yield Found(
                script.place(call),
                "cache() keeps every decoded element in memory",
                edits=edits if code else (),
                sure=False,
            )


def _source(text: str, place: tuple[int, int, int, int]) -> str:
    """The text of a span."""
    lines = text.splitlines()[place[0] - 1 : place[2]]
    if len(lines) == 1:
        return lines[0][place[1] : place[3]]
    return "\n".join([lines[0][place[1] :], *lines[1:-1], lines[-1][: place[3]]])


CAUSE = Cause(
    name="cache-in-memory",
    title="Decoded data is cached in memory",
    why="cache() without a file keeps each element after decoding, ten times the size of the files or more.",
    cure="cache(file) keeps it on disk; ps's .cache() has a byte budget and goes to disk beyond it.",
    live=live,
    script=script,
    instead="ps.read_images(...).cache(): bounded, on disk",
)
