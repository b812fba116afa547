"""An HDF5 or LMDB file is opened before workers are forked.

Covers: h5py.File or lmdb.open in __init__ of a Dataset that DataLoader workers use.
Does not cover: files opened in each worker.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues

OPENERS = ("h5py.File", "lmdb.open", "lmdb.Environment")


def live(facts: Clues) -> Sign | None:
    opened = [call for call in facts.calls("h5py.File") if call["pid"] == facts.main]
    loaders = [
        call
        for call in facts.calls("DataLoader")
        if int(call.get("workers") or 0) > 0 and call.get("start") in ("None", "fork")
    ]
    grown = facts.grown_since_fork
    if not opened or not loaders or grown < 0.2 * facts.limit or any(n.last > 0.15 * facts.limit for n in facts.names):
        return None
    return Sign(
        0.7,
        ("an HDF5 file was opened in the main process, then workers were forked; they grew",),
        opened[0]["where"],
        grown,
    )


def script(script: Script) -> Iterator[Found]:
    if not any(True for _ in script.calls("torch.utils.data.DataLoader")):
        return
    for call in script.calls(*OPENERS):
        function = script.function(call)
        owner = next((p for p in script.above(call) if isinstance(p, ast.ClassDef)), None)
        if owner is not None and function is not None and function.name == "__init__":
            text = f"{script.name(call.func)} in __init__: the handle and its cache are copied into every forked worker"
            yield Found(script.place(call), text, sure=False)


CAUSE = Cause(
    name="handle-before-fork",
    title="A file handle with a cache is opened before workers are forked",
    why="Every forked worker gets a copy of the handle and grows its own cache; HDF5 may also read wrong data.",
    cure="Open the file in the worker, at the first __getitem__; or ps.read_hdf5(path, ...).",
    live=live,
    script=script,
    instead="ps.read_hdf5(path)",
)
