"""predict keeps and joins the outputs of all rows.

Covers: Keras's predict on data whose outputs together are large.
Does not cover: loops written by hand (outputs_kept.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues


def live(facts: Clues) -> Sign | None:
    calls = facts.calls("keras.predict")
    grown = facts.shape.by_phase.get("predict", 0)
    if not calls or grown < 0.25 * facts.limit or facts.count("predicts") > 20:
        return None
    text = f"memory grew by {size(grown)} in predict, over {facts.count('predict_steps')} batches"
    return Sign(0.88, (text,), calls[-1]["where"], grown)


def script(script: Script) -> Iterator[Found]:
    if not script.imports("keras", "tensorflow"):
        return
    for call in script.calls(".predict"):
        if script.in_loop(call) is None:
            yield Found(
                script.place(call), "predict keeps the outputs of all rows, and joins them at the end", sure=False
            )


CAUSE = Cause(
    name="predict-joins",
    title="predict keeps the outputs of all rows",
    why="Keras collects every batch's output and concatenates them: twice the output is in memory at the end.",
    cure=(
        "Write each batch's output when it comes: ps.predict(model, ds, out='predictions.parquet'), or "
        "predict_on_batch in a loop."
    ),
    live=live,
    script=script,
    instead="penstock predict MODEL DATA --out predictions.parquet",
)
