"""Pieces are collected in a list and joined at the end.

Covers: pandas.concat, numpy.concatenate, vstack and stack, torch.cat of a list filled in a loop; in a loop.
Does not cover: joining a few arrays.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.static.collects import collected, plain_name
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues

JOINERS = (
    "pandas.concat",
    "numpy.concatenate",
    "numpy.vstack",
    "numpy.hstack",
    "numpy.stack",
    "torch.cat",
    "torch.stack",
    "torch.vstack",
    "torch.hstack",
    "numpy.append",
    "numpy.r_",
    "jax.numpy.concatenate",
    "jax.numpy.append",
    "jax.numpy.vstack",
    "tensorflow.concat",
    "polars.concat",
    "pyarrow.concat_tables",
    "numpy.array",
    "numpy.asarray",
    "torch.tensor",
    "torch.FloatTensor",
    "tensorflow.stack",
    "tensorflow.convert_to_tensor",
)
LIBRARIES = (
    "pandas/core/reshape/concat.py",
    "numpy/_core/shape_base.py",
    "numpy/core/shape_base.py",
    "pandas/core/internals/concat.py",
)


def live(facts: Clues) -> Sign | None:
    calls = [call for call in facts.calls("concat") if int(call["nbytes"]) > 0.2 * facts.limit or call.get("failed")]
    if not calls:
        score, grown = facts.library_share(*LIBRARIES)
        return Sign(score, (f"memory grew by {size(grown)} while pieces were joined",), nbytes=grown) if score else None
    last = calls[-1]
    return Sign(
        0.8, (f"concat gave {size(int(last['nbytes']))} beside its pieces",), last["where"], 2 * int(last["nbytes"])
    )


def script(script: Script) -> Iterator[Found]:
    lists = _filled_lists(script)
    for call in script.calls(*JOINERS):
        first = call.args[0] if call.args else None
        name = first.id if isinstance(first, ast.Name) else ""
        what = script.name(call.func)
        if script.in_loop(call) is not None and (grows := _grows(script, call)):
            yield Found(script.place(call), f"{what} in a loop copies everything so far each time", near=1, name=grows)
        elif name in lists:
            yield Found(script.place(call), f"{what} of the list {name}: pieces and result are there together", near=0)
            yield Found(lists[name], f"the list {name} collects every piece for {what}", near=1, name=name)


def _grows(script: Script, call: ast.Call) -> str:
    """The name that the result is assigned to, if it is also joined."""
    statement = script.parents.get(call)
    if not isinstance(statement, ast.Assign):
        return ""
    target = ast.unparse(statement.targets[0])
    again = any(isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) == target for node in ast.walk(call))
    return plain_name(statement.targets[0]) if again else ""


def _filled_lists(script: Script) -> dict[str, str]:
    """Names of lists that a loop appends to, with the place where it does."""
    return {
        item.name: script.place(item.node)
        for item in collected(script)
        if item.name and isinstance(item.node, ast.Call) and item.loop is not None
    }


CAUSE = Cause(
    name="pieces-joined",
    title="Pieces are collected and joined: everything is there twice",
    why="While pieces are joined, the pieces and the result are both in memory; in a loop, every turn copies all.",
    cure=(
        "Use each piece when it comes; or write into one array made beforehand; or stream with "
        "ps.read_csv / ps.read_parquet."
    ),
    live=live,
    script=script,
    instead="ps.read_csv('part-*.csv').batch(256)",
)
