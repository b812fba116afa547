"""Which columns a step prepares, and what becomes of their fields.

Covers: finding columns by the names that users see; dtype, shape and names after a step.
Does not cover: the numbers in them (normalise.py, augment.py, mixup.py).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from penstock.core.errors import InvalidInput, NotFound
from penstock.core.schema import OBJECT, Field, Schema
from penstock.core.tree import Tree, names
from penstock.plan.prepare import Augment, Mixup, Normalise, Prepare

_PICTURE_TYPES = (np.dtype(np.uint8), np.dtype(np.float32))


def targets(step: Prepare, tree: Tree) -> dict[str, str]:
    """The block's columns that a step changes, each with the name that users know it by."""
    x = tree[0] if isinstance(tree, tuple) and tree else tree
    if step.columns is None:
        if not isinstance(x, str):
            raise InvalidInput(
                f"{step.describe()}: samples have the columns {', '.join(map(str, x))}; say which with columns=."
            )
        return {x: x}
    known = {name: name for name in names(tree)}
    if isinstance(x, dict):
        known |= {key: leaf for key, leaf in x.items() if isinstance(leaf, str)}
    missing = [name for name in step.columns if name not in known]
    if missing:
        raise NotFound(f"{step.describe()}: there is no column {missing[0]!r}. There are: {', '.join(known)}.")
    return {known[name]: name for name in step.columns}


def prepared_schema(step: Prepare, schema: Schema) -> Schema:
    """The schema after a step; raises InvalidInput where the step does not fit the columns."""
    if isinstance(step, Mixup):
        raise InvalidInput("mixup changes batches: call it after batch().")
    wanted = targets(step, schema.tree)
    fields = tuple(_field(step, field) if field.name in wanted else field for field in schema)
    return Schema(fields, schema.tree)


def _field(step: Prepare, field: Field) -> Field:
    if isinstance(step, Augment):
        picture(field.name, field.dtype, field.shape)
        return field
    assert isinstance(step, Normalise)
    if field.dtype == OBJECT or field.dtype.kind not in "biuf":
        raise InvalidInput(f"normalise: {field} is not of numbers.")
    shape = field.shape
    if step.layout == "CHW":
        if len(shape) != 3:
            raise InvalidInput(f"normalise: layout='CHW' is for pictures of height x width x channels, not {field}.")
        shape = (shape[2], shape[0], shape[1])
    return replace(field, dtype=np.dtype(np.float32), shape=shape)


def picture(name: str, dtype: np.dtype[np.generic], shape: tuple[int | None, ...]) -> None:
    """Refuse what is not a picture of height x width x channels."""
    channels = shape[-1] if len(shape) == 3 else None
    if dtype not in _PICTURE_TYPES or len(shape) != 3 or (channels is not None and not 1 <= channels <= 4):
        raise InvalidInput(
            f"augment takes pictures of height x width x 1 to 4 channels, uint8 or float32; {name} is {dtype} of "
            f"{shape}. Before normalise(layout='CHW') pictures have this shape."
        )
