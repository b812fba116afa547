"""Small data is expanded to something dense and large.

Covers: one-hot (get_dummies, to_categorical, numpy.eye[...]), .toarray() and .todense(), padding all to the longest.
Does not cover: expansion of one batch at a time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.static.script import Script, keyword
from penstock.doctor.verdict.facts import Clues

EXPANDERS = {
    "pandas.get_dummies": "one-hot columns for every value",
    "keras.utils.to_categorical": "one-hot rows for every label",
    "tensorflow.keras.utils.to_categorical": "one-hot rows for every label",
    "to_categorical": "one-hot rows for every label",
    "tensorflow.one_hot": "one-hot rows for every label",
    "torch.nn.functional.one_hot": "one-hot rows of int64 for every label",
    "pad_sequences": "all rows padded to the longest",
    "torch.nn.utils.rnn.pad_sequence": "all rows padded to the longest",
}


LIBRARIES = (
    "scipy/sparse/",
    "sklearn/preprocessing/_encoders.py",
    "sklearn/preprocessing/_polynomial.py",
    "pandas/core/reshape/encoding.py",
    "keras/src/utils/sequence_utils.py",
    "keras/src/utils/numerical_utils.py",
    "torch/nn/utils/rnn.py:pad_sequence",
    "numpy/lib/_twodim_base_impl.py:eye",
    "numpy/lib/twodim_base.py:eye",
)


def live(facts: Clues) -> Sign | None:
    for what in ("toarray", "get_dummies"):
        calls = [call for call in facts.calls(what) if int(call["nbytes"]) > 0.2 * facts.limit]
        if calls:
            nbytes = int(calls[-1]["nbytes"])
            return Sign(0.8, (f"{what} gave {size(nbytes)} {calls[-1]['detail']}",), calls[-1]["where"], nbytes)
    score, grown = facts.library_share(*LIBRARIES)
    return Sign(score, (f"memory grew by {size(grown)} while data was made dense",), nbytes=grown) if score else None


def script(script: Script) -> Iterator[Found]:
    for call in script.all_calls:
        name = script.name(call.func)
        known = next((text for key, text in EXPANDERS.items() if name == key or name.endswith("." + key)), "")
        if name.endswith((".toarray", ".todense")):
            known = "a sparse matrix made dense"
        if name.endswith("OneHotEncoder") and any(
            script.value(keyword(call, word)) is False for word in ("sparse_output", "sparse")
        ):
            known = "one-hot columns for every value, dense"
        if known and script.in_loop(call) is None and not _in_item(script, call):
            yield Found(script.place(call), f"{name.split('.')[-1]}: {known}", sure=False)
    for node in ast.walk(script.tree):
        if (
            (
                isinstance(node, ast.Subscript)
                and isinstance(node.value, ast.Call)
                and script.name(node.value.func) == "numpy.eye"
            )
            and script.in_loop(node) is None
            and not _in_item(script, node)
        ):
            yield Found(script.place(node), "np.eye(n)[labels]: one-hot rows of float64 for every label")


def _in_item(script: Script, node: ast.AST) -> bool:
    """In a function that handles one sample or batch."""
    function = script.function(node)
    return function is not None and any(
        word in function.name for word in ("getitem", "collate", "batch", "step", "map", "parse")
    )


CAUSE = Cause(
    name="dense-expansion",
    title="Data is expanded to a dense array for the whole dataset",
    why=(
        "One-hot, padding and dense copies multiply the bytes by the number of classes, the longest row "
        "or the empty cells."
    ),
    cure=(
        "Expand inside of the batch, or not at all: sparse_categorical_crossentropy, bucketing by length, sparse input."
    ),
    live=live,
    script=script,
    instead="ds.map(expand) after ps.read_*: one batch is expanded at a time",
)
