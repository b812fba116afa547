"""Arrays handed to fit become one tensor, beside the array.

Covers: model.fit(x, y) of Keras with NumPy arrays, validation_split, tf.data.Dataset.from_tensor_slices.
Does not cover: fit on a dataset or generator.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.static.script import Script, keyword
from penstock.doctor.verdict.facts import Clues


def live(facts: Clues) -> Sign | None:
    calls = [
        call for call in facts.calls("keras.fit") if call.get("array") and int(call["nbytes"]) > 0.15 * facts.limit
    ]
    if not calls:
        return None
    nbytes = int(calls[-1]["nbytes"])
    grown = facts.grew_at(calls[-1]["where"], near=2)
    score = 0.85 if facts.count("step") <= 2 or grown > 0.8 * nbytes else 0.45
    return Sign(
        score, (f"fit was given an array of {size(nbytes)} and makes a tensor of it",), calls[-1]["where"], 2 * nbytes
    )


def against(facts: Clues) -> bool:
    """What fit was given is known, and small: its line may have grown, but not for this."""
    given = [call for call in facts.calls("keras.fit") if call.get("array")]
    return bool(given) and max(int(call["nbytes"]) for call in given) < 0.05 * facts.limit


def script(script: Script) -> Iterator[Found]:
    if not script.imports("keras", "tensorflow"):
        return
    for call in script.calls("tensorflow.data.Dataset.from_tensor_slices", "tf.data.Dataset.from_tensor_slices"):
        yield Found(script.place(call), "from_tensor_slices copies the array into a tensor", sure=False)
    for call in script.calls(".fit"):
        if len(call.args) >= 2 or keyword(call, "y") is not None:
            split = keyword(call, "validation_split") is not None
            text = "fit(x, y) with arrays makes one tensor of all of it" + (
                ", and validation_split another" if split else ""
            )
            yield Found(script.place(call), text, sure=not isinstance(call.args[0] if call.args else None, ast.Call))


CAUSE = Cause(
    name="arrays-to-fit",
    title="An array handed to fit becomes one tensor: the data is there twice",
    why="Keras and from_tensor_slices copy the array into the framework's memory before the first step.",
    cure="Hand over batches: ps.from_tensor_slices((x, y)).batch(64).keras(), or a keras.utils.PyDataset.",
    live=live,
    script=script,
    against=against,
    instead="model.fit(ps.from_tensor_slices((x, y)).batch(64).keras())",
)
