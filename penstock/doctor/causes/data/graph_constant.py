"""A large array becomes a constant of a graph.

Covers: `GraphDef cannot be larger than 2GB`, tf.constant or from_tensor_slices in a tf.function.
Does not cover: arrays handed to fit (arrays_to_fit.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues


def live(facts: Clues) -> Sign | None:
    said = facts.says(
        r"GraphDef cannot be larger than 2GB|Cannot create a tensor proto whose content is larger than 2GB"
    )
    return Sign(0.95, (said,)) if said else None


def script(script: Script) -> Iterator[Found]:
    for call in script.calls("tensorflow.constant", "tensorflow.data.Dataset.from_tensor_slices"):
        if script.under(call, "function", "jit"):
            yield Found(script.place(call), "an array becomes a constant of the traced function")


CAUSE = Cause(
    name="graph-constant",
    title="A large array is a constant of the graph",
    why=(
        "A constant is copied into the graph, and again wherever the graph is optimised, saved or sent; "
        "2 GB is the end."
    ),
    cure="Hand data to the function as an argument, or read it from files: ps.read_numpy(path).tensorflow().",
    live=live,
    script=script,
    instead="ps.read_numpy(path).batch(64).tensorflow()",
)
