"""A whole array file is read into memory.

Covers: numpy.load without mmap_mode.
Does not cover: .npz archives, which cannot be mapped.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.patch.edits import SetKeyword, span
from penstock.doctor.static.data import weigh_data
from penstock.doctor.static.script import Script, argument, keyword
from penstock.doctor.verdict.facts import Clues

_SMALL = 50_000_000


def live(facts: Clues) -> Sign | None:
    begun = facts.unfinished("np.load")
    if begun is not None and facts.died and begun["file_nbytes"] > 0.2 * facts.limit:
        nbytes = int(begun["file_nbytes"])
        return Sign(0.85, (f"it died inside of np.load of {size(nbytes)}",), begun["where"], nbytes)
    calls = [call for call in facts.calls("np.load") if int(call["nbytes"]) > 0.25 * facts.limit]
    if not calls:
        return None
    call = max(calls, key=lambda item: int(item["nbytes"]))
    return Sign(
        0.8, (f"np.load gave {size(int(call['nbytes']))} {call['detail']}",), call["where"], int(call["nbytes"])
    )


def script(script: Script) -> Iterator[Found]:
    for call in script.calls("numpy.load"):
        name = script.value(argument(call, 0, "file"))
        if keyword(call, "mmap_mode") is not None or len(call.args) > 1 or str(name).endswith(".npz"):
            continue
        weight = weigh_data(name, script.path.parent)
        if weight is not None and weight.memory < _SMALL:
            continue
        edit = SetKeyword(span(script.text, call), "mmap_mode", '"r"')
        about = f" of {size(weight.memory)}" if weight else ""
        yield Found(
            script.place(call),
            f"numpy.load{about} reads the whole array",
            weight.memory if weight else None,
            (edit,),
            sure=weight is not None,
        )


CAUSE = Cause(
    name="whole-array-loaded",
    title="A whole array file is read into memory",
    why="np.load copies the file into memory although only a batch is needed at a time.",
    cure='Map it: np.load(path, mmap_mode="r"); slices are then read when they are used. Or ps.read_numpy(path).',
    live=live,
    script=script,
    instead="ps.read_numpy(path).batch(256)",
)
