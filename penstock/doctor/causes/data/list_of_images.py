"""Every picture is decoded into one list, dictionary or array.

Covers: imread, Image.open, img_to_array or np.load collected by a loop or comprehension.
Does not cover: decoding inside of a Dataset or generator, a batch at a time.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.static.collects import Collected, collected
from penstock.doctor.static.data import Weight, weigh_named
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues

READERS = ("imread", "open", "load_img", "img_to_array", "decode_jpeg", "read_image", "imdecode")
_SMALL = 50_000_000
OWNERS = (
    "cv2",
    "PIL",
    "Image",
    "skimage",
    "imageio",
    "matplotlib",
    "keras",
    "tensorflow",
    "torchvision",
    "numpy",
    "plt",
)


PIXELS = re.compile(r"\[\d+, \d+, [134]\]|\[[134], \d+, \d+\]|uint8\[\d+, \d+\]")
"""Shapes of pictures: channels last or first, or grey bytes."""


def live(facts: Clues) -> Sign | None:
    for item in facts.names:
        if (
            item.last > 0.4 * facts.limit
            and item.type in ("builtins.list", "builtins.dict", "builtins.tuple", "collections.defaultdict")
            and PIXELS.search(item.detail)
            and facts.count("step") == 0
        ):
            text = f"the {item.type.split('.')[1]} {item.name} holds {item.last_len} decoded pictures"
            return Sign(0.75, (text,), nbytes=item.last)
    return None


def script(script: Script) -> Iterator[Found]:
    for item in collected(script):
        what = next((found for value in item.values if (found := _reader(script, value))), "")
        if what and not any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in _around(item)):
            text = f"{item.name or 'a list'} gets everything that {what} reads"
            weight = _weight(script, item)
            if weight is not None and weight.memory < _SMALL:
                continue
            about = f": {size(weight.disk)} on disk, about {size(weight.memory)} as pixels" if weight else ""
            nbytes = weight.memory if weight else None
            yield Found(script.place(item.node), text + about, nbytes, near=4, name=item.name)


def _weight(script: Script, item: Collected) -> Weight | None:
    """The pictures of the folder or pattern that is named around the loop."""
    around = item.method or item.loop
    names = [node for node in ast.walk(around or item.node) if isinstance(node, (ast.Constant, ast.Name, ast.BinOp))]
    return weigh_named((script.value(node) for node in names), script.path.parent)


def _around(item: Collected) -> Iterator[ast.AST]:
    return ast.walk(item.loop) if item.loop is not None else iter(())


def _reader(script: Script, node: ast.AST) -> str:
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            name = script.name(call.func)
            if name.split(".")[-1] in READERS and name.split(".")[0] in OWNERS:
                return name
    return ""


CAUSE = Cause(
    name="list-of-images",
    title="All pictures are decoded into one list",
    why="A JPEG of 100 KB is 1 to 10 MB of pixels; the list holds all of them before the first step.",
    cure="Decode when a batch is made: ps.read_images(folder, size=...), or a Dataset that reads in __getitem__.",
    live=live,
    script=script,
    instead='ps.read_images("train/", size=(224, 224)).batch(64)',
)
