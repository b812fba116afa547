"""The plan as it will run: what is fused, where the shuffle went, and how many bytes each stage may hold.

Covers: the text of `ds.explain()`.
Does not cover: rewriting (plan/rewrite.py); it reads what the builder will do, it does not decide.
"""

from __future__ import annotations

from penstock.core.errors import PenstockError
from penstock.core.events import fallbacks_in_words
from penstock.core.schema import Schema
from penstock.core.sizes import size
from penstock.core.source import RowSource, decoded_nbytes
from penstock.engine.arrange import width_of
from penstock.engine.pipe import cores
from penstock.engine.prepare.columns import prepared_schema
from penstock.engine.quality import quality_of
from penstock.engine.rowstore.choose import store_wanted
from penstock.engine.rowstore.store import stores_folder
from penstock.engine.run import READY_LEAST
from penstock.engine.segment import Segment, decodes_into_batches, segment_of, source_of
from penstock.engine.streams.stream import ReadAhead
from penstock.plan import steps
from penstock.plan.prepare import Normalise, Prepare
from penstock.plan.steps import Node


def explain(node: Node) -> str:
    """One stage a line, in the order in which data passes them, with its bytes; then what went a slower way."""
    lines = _stages(node, "")
    slower = fallbacks_in_words()
    if slower:
        lines += ["slower ways that this process has gone so far:", *(f"   {line}" for line in slower)]
    return "\n".join(lines)


def _stages(node: Node, indent: str) -> list[str]:
    segment = segment_of(node, source_of)
    if segment is not None:
        return [indent + line for line in _segment_lines(segment)]
    step = node.step
    if len(node.inputs) > 1:
        inner = [line for child in node.inputs for line in _stages(child, indent + "  | ")]
        return [*inner, f"{indent}-> {step.describe()}"]
    if not isinstance(step, steps.Batch):
        return [*_stages(node.input, indent), f"{indent}-> {step.describe()}"]
    below = segment_of(node.input, source_of)
    nbytes = step.size * _row_nbytes(node.input)
    held = f"{size(nbytes)} a batch, up to {size(nbytes * (_jobs() + READY_LEAST + 1))}"
    if below is not None and decodes_into_batches(below):
        known = " + ".join(["decode", *(s.describe() for s in below.before + below.after)])
        return [indent + line for line in _order_lines(below)] + [
            f"{indent}-> {known} straight into {step.describe()}: {held}"
        ]
    if isinstance(node.input.step, Normalise) and not step.pad:
        known = node.input.step.describe()
        return [*_stages(node.input.input, indent), f"{indent}-> {known} into {step.describe()}: {held}"]
    return [*_stages(node.input, indent), f"{indent}-> {step.describe()}: {held}"]


def _segment_lines(segment: Segment) -> list[str]:
    lines = _order_lines(segment)
    source = segment.source
    if isinstance(source, RowSource):
        steps_here = segment.before + segment.after
        lines.append("-> " + " + ".join(["decode", *(s.describe() for s in steps_here)]) + " (one job)")
        return lines
    nbytes = max((source.unit_nbytes(unit) for unit in range(min(source.num_units(), 16))), default=0)
    fused = " + ".join(["parse", *(s.describe() for s in segment.before)])
    lines.append(f"-> {fused} (one job): {size(nbytes)} a block, up to {size(nbytes * _jobs())}")
    if segment.shuffle is not None:
        width = width_of(segment.shuffle)
        held = f"{width.rows} rows" if width.rows is not None else f"up to {size(width.nbytes + nbytes)}"
        lines.append(f"-> mix rows of a window: {held}")
        found = quality_of(segment)
        lines.append(f"   {found.how}: coverage {found.coverage:.2f} of a uniform shuffle's")
        wanted = store_wanted(source, segment.shuffle)
        if wanted is not None:
            folder = stores_folder() if wanted.folder is None else wanted.folder
            nbytes = decoded_nbytes(source)
            lines.append(f"   row store in {folder}: about {size(nbytes)}, written once, before the first batch")
    if segment.after:
        lines.append("-> " + " + ".join(s.describe() for s in segment.after) + " (one job)")
    return lines


def _order_lines(segment: Segment) -> list[str]:
    source = segment.source
    lines = [f"read {source.label}"]
    if segment.shard is not None:
        lines.append(f"-> part {segment.shard.index} of {segment.shard.world}")
    if segment.shuffle is not None:
        what = "rows, exactly" if isinstance(source, RowSource) else "units"
        lines.append(f"-> shuffle {what} (seed {segment.shuffle.seed}): 0 B, computed")
    return lines


def _jobs() -> int:
    return ReadAhead().jobs(cores())


def _row_nbytes(node: Node) -> int:
    """Bytes of a row as far as the source and known steps show; functions may change it."""
    known: list[Prepare] = []
    while node.inputs and not isinstance(node.step, steps.Cache):
        if isinstance(node.step, Prepare):
            known.insert(0, node.step)
        node = node.input
    source = source_of(node)
    schema: Schema | None = None if source is None else source.schema()
    if schema is None:
        return 0
    try:
        for step in known:
            schema = prepared_schema(step, schema)
    except PenstockError:
        return schema.row_nbytes  # a function in between has made something else of the rows
    return schema.row_nbytes
