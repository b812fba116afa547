"""Gradient boosting copies its input.

Covers: xgboost.DMatrix and lightgbm.Dataset beside the table they are made from.
Does not cover: training itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.static.collects import plain_name
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues


def live(facts: Clues) -> Sign | None:
    calls = [call for call in facts.calls("gbdt.matrix") if int(call["nbytes"]) > 0.15 * facts.limit]
    if not calls:
        return None
    nbytes = int(calls[-1]["nbytes"])
    return Sign(
        0.85, (f"the matrix is a copy of {size(nbytes)} {calls[-1]['detail']}",), calls[-1]["where"], 2 * nbytes
    )


def script(script: Script) -> Iterator[Found]:
    for call in script.calls("xgboost.DMatrix", "lightgbm.Dataset"):
        yield Found(script.place(call), f"{script.name(call.func)} copies the whole table", near=1, sure=False)
    learners = {
        plain_name(node.targets[0])
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Assign) and _learns(script, node)
    }
    for call in script.calls(".fit"):
        if isinstance(call.func, ast.Attribute) and plain_name(call.func.value) in learners:
            yield Found(script.place(call), "fit makes a matrix of its own beside the table", near=1, sure=False)


def _learns(script: Script, node: ast.Assign) -> bool:
    """A learner of XGBoost or LightGBM with scikit-learn's face."""
    name = script.name(node.value.func) if isinstance(node.value, ast.Call) else ""
    return name.startswith(("xgboost.XGB", "lightgbm.LGBM"))


CAUSE = Cause(
    name="gbdt-copies",
    title="Gradient boosting copies its input",
    why="DMatrix and Dataset keep their own copy, float64 tables are converted on the way, and the table stays alive.",
    cure="float32, QuantileDMatrix from an iterator (xgboost.DataIter), lightgbm's binary file, and del the table.",
    live=live,
    script=script,
    instead="xgboost.QuantileDMatrix(DataIter over ps.read_csv(...))",
)
