"""Page cache looks like a leak.

Covers: usage near the limit that is mostly cached files, which the kernel takes back.
Does not cover: dirty pages at a save.
"""

from __future__ import annotations

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Sign
from penstock.doctor.verdict.facts import Clues


def live(facts: Clues) -> Sign | None:
    groups = [s["group"] for s in facts.evidence.samples if "group" in s]
    if facts.evidence.run["limit_kept_by"] != "cgroup" or not groups:
        return None
    top = max(groups, key=lambda g: int(g["usage"]))
    if top["usage"] < 0.6 * facts.limit or top["file"] < 0.5 * top["usage"] or facts.shape.peak > 0.5 * facts.limit:
        return None
    text = (
        f"of {size(top['usage'])} in use, {size(top['file'])} were cached files; the script itself held "
        f"{size(facts.shape.peak)}"
    )
    return Sign(0.8, (text,), nbytes=int(top["file"]))


CAUSE = Cause(
    name="page-cache",
    title="Not a leak: the memory is cached files",
    why="The kernel counts files that were read to the container and drops them when memory is needed.",
    cure=(
        "Nothing is wrong. Watch anonymous memory (anon, rss), not usage; posix_fadvise(DONTNEED) if a "
        "dashboard must be calm."
    ),
    live=live,
)
