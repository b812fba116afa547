"""What the features of tf.train.Example records are and become.

Covers: `Feature`, reading it from what users write (dtypes, shapes, tf.io feature objects), the field it becomes.
Does not cover: guessing features from records (infer.py), parsing (columns.py).

TensorFlow is not imported: its feature objects are known by their class names and attributes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.errors import InvalidInput
from penstock.core.schema import OBJECT, Field

BYTES, FLOAT, INT = 1, 2, 3
"""Kinds of feature: their field numbers in the Feature message."""

KIND_NAMES = {BYTES: "bytes", FLOAT: "floats", INT: "integers"}

Shape = tuple[int | None, ...]

FeatureLike = Any
"""A dtype, a (dtype, shape) pair, a tf.io feature, or None to infer it."""


@dataclass(frozen=True)
class Feature:
    """One feature of a record and the column it becomes.

    `kind` is how it is stored. `dtype` is that of the column: object for bytes and text. A shape without None is an
    array; with None first, a list of whatever length. `listed` features stand in the feature_lists of a
    SequenceExample, so their first axis is the steps. Bytes with a numeric dtype are the raw memory of an array.
    """

    name: str
    kind: int
    dtype: np.dtype[Any]
    shape: Shape = ()
    default: Any = None
    optional: bool = False
    text: bool = False
    listed: bool = False
    image: bool = False

    @property
    def raw(self) -> bool:
        return self.kind == BYTES and self.dtype != OBJECT and not self.image

    @property
    def fixed(self) -> bool:
        """Whether every record holds the same number of numbers, so that they have a place in an array."""
        return self.kind != BYTES and None not in self.shape and not self.listed

    @property
    def count(self) -> int:
        """Values in a record, of a feature that is `fixed` (or in a step, or in an element of a list)."""
        return math.prod(n for n in self.shape if n is not None)

    @property
    def field(self) -> Field:
        """The column of this feature (an image's is known to the decoder)."""
        if self.dtype == OBJECT and self.shape:
            return Field(self.name, OBJECT, (None,) * len(self.shape), text=self.text)
        if self.fixed or self.raw or self.dtype == OBJECT:
            return Field(self.name, self.dtype, self.shape, text=self.text)
        return Field(self.name, self.dtype, (None,) * len(self.shape))


def feature_of(name: str, given: FeatureLike, seen: Feature | None, *, listed: bool = False) -> Feature:
    """The feature that a user's description means; what it leaves open is taken from the records."""
    if given is None:
        if seen is None:
            raise InvalidInput(
                f"Feature {name!r} is in none of the first records, so its dtype and shape must be given."
            )
        return seen
    kind = type(given).__name__
    if kind in _TENSORFLOW:
        return _TENSORFLOW[kind](name, given, seen, listed)
    if hasattr(given, "value_keys") or kind == "SparseFeature":
        raise InvalidInput(f"Feature {name!r}: {kind} is not supported. Read its parts as VarLenFeature and join them.")
    if isinstance(given, tuple) and len(given) == 2 and not isinstance(given[1], str):
        return _described(name, given[0], _shape(name, given[1]), seen, listed)
    return _described(name, given, None, seen, listed)


def _shape(name: str, shape: Any) -> Shape:
    if hasattr(shape, "as_list"):
        shape = shape.as_list()
    if shape is None or isinstance(shape, (int, np.integer)):
        shape = (shape,)
    try:
        found = tuple(None if n is None else int(n) for n in shape)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"Feature {name!r}: {shape!r} is not a shape.") from error
    if any(n is None for n in found[1:]) or any(n is not None and n < 0 for n in found):
        raise InvalidInput(f"Feature {name!r}: shape {found} must be whole numbers; only its first axis may be None.")
    return found


def _dtype(name: str, given: Any) -> tuple[np.dtype[Any], bool]:
    """The dtype of a column and whether it is text. tf.DType has a `name`, and calls bytes 'string'."""
    named = getattr(given, "name", given) if not isinstance(given, type) else given
    if named in (bytes, "bytes", "string"):
        return OBJECT, False
    if named in (str, "str", "text"):
        return OBJECT, True
    try:
        dtype = np.dtype(named)
    except TypeError as error:
        raise InvalidInput(
            f"Feature {name!r}: {given!r} is not a dtype, a (dtype, shape) or a tf.io feature."
        ) from error
    if dtype.kind not in "fiub":
        raise InvalidInput(
            f"Feature {name!r}: dtype {dtype} cannot be stored in an Example; use a number, bytes or str."
        )
    return dtype, False


def _described(name: str, given: Any, shape: Shape | None, seen: Feature | None, listed: bool) -> Feature:
    dtype, text = _dtype(name, given)
    stored = BYTES if dtype == OBJECT else FLOAT if dtype.kind == "f" else INT
    if shape is None:
        shape = seen.shape if seen is not None else ((None,) if listed else ())
    elif listed and (not shape or shape[0] is not None):
        shape = (None, *shape)
    if seen is not None and seen.kind != stored:
        stored = _stored_otherwise(name, dtype, seen.kind)
    return Feature(name, stored, dtype, shape, text=text, listed=listed)


def _stored_otherwise(name: str, dtype: np.dtype[Any], kind: int) -> int:
    """Integers become floats, and bytes the array whose memory they are; anything else is a mistake."""
    if dtype != OBJECT and (kind == BYTES or (kind == INT and dtype.kind == "f")):
        return kind
    wanted = "bytes" if dtype == OBJECT else str(dtype)
    raise InvalidInput(f"Feature {name!r} was asked for as {wanted}, but the records hold {KIND_NAMES[kind]}.")


def _tf_fixed(name: str, given: Any, seen: Feature | None, listed: bool) -> Feature:
    shape = _shape(name, given.shape)
    if shape and shape[0] is None:
        raise InvalidInput(f"Feature {name!r}: FixedLenFeature needs a whole shape, not {shape}.")
    dtype, _ = _dtype(name, given.dtype)
    stored = BYTES if dtype == OBJECT else FLOAT if dtype.kind == "f" else INT
    default = given.default_value
    return Feature(name, stored, dtype, shape, default=default, optional=default is not None, listed=listed)


def _tf_open(name: str, given: Any, seen: Feature | None, listed: bool) -> Feature:
    if tuple(getattr(given, "partitions", ())):
        raise InvalidInput(f"Feature {name!r}: RaggedFeature with partitions is not supported. Read its parts apart.")
    dtype, _ = _dtype(name, given.dtype)
    stored = BYTES if dtype == OBJECT else FLOAT if dtype.kind == "f" else INT
    key = getattr(given, "value_key", None)
    if key is not None and key != name:
        raise InvalidInput(f"Feature {name!r}: RaggedFeature with value_key={key!r}: call the feature {key!r} instead.")
    return Feature(name, stored, dtype, (None, None) if listed else (None,), optional=True, listed=listed)


def _tf_sequence(name: str, given: Any, seen: Feature | None, listed: bool) -> Feature:
    dtype, _ = _dtype(name, given.dtype)
    stored = BYTES if dtype == OBJECT else FLOAT if dtype.kind == "f" else INT
    shape = (None, *_shape(name, given.shape))
    return Feature(name, stored, dtype, shape, optional=bool(given.allow_missing), listed=listed)


_TENSORFLOW = {
    "FixedLenFeature": _tf_fixed,
    "VarLenFeature": _tf_open,
    "RaggedFeature": _tf_open,
    "FixedLenSequenceFeature": _tf_sequence,
}


def features_of(
    given: Mapping[str, FeatureLike] | Sequence[str] | str | None, seen: Mapping[str, Feature], *, listed: bool = False
) -> list[Feature]:
    """The features a user asked for, or all that the first records hold."""
    if given is None:
        return list(seen.values())
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, Mapping):
        given = dict.fromkeys(given)
    return [feature_of(name, what, seen.get(name), listed=listed) for name, what in given.items()]
