"""A whole array file is read into memory.

Covers: numpy.load without mmap_mode.
Does not cover: a cure of .npz archives, which cannot be mapped.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.patch.edits import SetKeyword, span
from penstock.doctor.static.collects import plain_name
from penstock.doctor.static.data import weigh_data
from penstock.doctor.static.script import Script, argument, keyword
from penstock.doctor.verdict.facts import Clues

READERS = ("numpy.load", "numpy.fromfile", "h5py.File", "scipy.io.loadmat", "joblib.load", "pickle.load", ".load_data")
PER_ITEM = ("__getitem__", "collate_fn", "map_fn", "parse", "decode")
_SMALL = 50_000_000
LIBRARIES = (
    "numpy/lib/_npyio_impl.py",
    "numpy/lib/npyio.py",
    "numpy/lib/format.py",
    "numpy/lib/_format_impl.py",
    "h5py/_hl/dataset.py",
    "zarr/core/",
    "scipy/io/",
    "joblib/numpy_pickle.py",
)
"""Files of libraries inside of which arrays are read."""


def live(facts: Clues) -> Sign | None:
    begun = facts.unfinished("np.load")
    if begun is not None and facts.died and begun["file_nbytes"] > 0.2 * facts.limit:
        nbytes = int(begun["file_nbytes"])
        return Sign(0.85, (f"it died inside of np.load of {size(nbytes)}",), begun["where"], nbytes)
    calls = [call for call in facts.calls("np.load") if int(call["nbytes"]) > 0.25 * facts.limit]
    if not calls:
        score, grown = facts.library_share(*LIBRARIES)
        text = f"memory grew by {size(grown)} inside of a library that reads arrays"
        return Sign(score, (text,), nbytes=grown) if score else _read_and_changed(facts)
    call = max(calls, key=lambda item: int(item["nbytes"]))
    return Sign(
        0.8, (f"np.load gave {size(int(call['nbytes']))} {call['detail']}",), call["where"], int(call["nbytes"])
    )


def _read_and_changed(facts: Clues) -> Sign | None:
    """Arrays that were read, and made larger afterwards: another type, a copy of a part."""
    read = [call for call in facts.calls("np.load") if int(call["nbytes"]) > 0.05 * facts.limit]
    if not read or facts.count("step") or not facts.died:
        return None
    nbytes = sum(int(call["nbytes"]) for call in read)
    text = f"{size(nbytes)} were read with np.load; conversions and copies of them took the rest"
    return Sign(0.55, (text,), read[-1]["where"], nbytes)


def script(script: Script) -> Iterator[Found]:
    yield from _converted(script)
    for call in script.calls("numpy.load"):
        name = script.value(argument(call, 0, "file"))
        if keyword(call, "mmap_mode") is not None or len(call.args) > 1:
            continue
        weight = weigh_data(name, script.path.parent)
        if weight is not None and weight.memory < _SMALL:
            continue
        archive = str(name).endswith(".npz")  # cannot be mapped
        edits = () if archive else (SetKeyword(span(script.text, call), "mmap_mode", '"r"'),)
        about = f" of {size(weight.memory)}" if weight else ""
        yield Found(
            script.place(call),
            f"numpy.load{about} reads the whole array",
            weight.memory if weight else None,
            edits,
            sure=weight is not None,
        )


def _converted(script: Script) -> Iterator[Found]:
    """Conversions outside of loops, in scripts that read arrays: a second array of all of it."""
    if not any(True for _ in script.calls(*READERS)):
        return
    for call in script.calls(".astype"):
        function = script.function(call)
        if script.in_loop(call) is None and (function is None or function.name not in PER_ITEM):
            text = "astype makes a second array of all the data, and wider types make it larger"
            yield Found(script.place(call), text, sure=False, name=plain_name(_target(script, call)))


def _target(script: Script, call: ast.AST) -> ast.AST | None:
    return next((n.targets[0] for n in script.above(call) if isinstance(n, ast.Assign)), None)


CAUSE = Cause(
    name="whole-array-loaded",
    title="A whole array file is read into memory",
    why="np.load copies the file into memory although only a batch is needed at a time.",
    cure='Map it: np.load(path, mmap_mode="r"); slices are then read when they are used. Or ps.read_numpy(path).',
    live=live,
    script=script,
    instead="ps.read_numpy(path).batch(256)",
)
