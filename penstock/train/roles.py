"""What each column is for, judged by its type and a look at the first rows.

Covers: choosing the target, and telling numbers, categories, text and pictures apart.
Does not cover: learning from all rows (learn.py), reading (inspect.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from penstock.core.errors import InvalidInput, NotFound
from penstock.core.schema import OBJECT, Field

Kind = Literal["number", "category", "text", "image", "image bytes", "ignored"]

TARGETS = ("label", "target", "class", "y", "cls", "labels")
"""Names that mean the target where it is not given."""
WORDS = 3.5
"""Text of more words than this on average is text; shorter text names a category."""
KEY_ROWS = 32
"""From so many rows on, whole numbers that never repeat may be a key."""
A_KEY = "it numbers the rows, like a key"
IDENTIFIER_ROWS = 200
"""From so many rows on, text that never repeats is taken for an identifier."""
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"RIFF", b"BM", b"GIF8", b"II*\0", b"MM\0*")


TIME = "time"


@dataclass(frozen=True)
class Role:
    """One column that a model sees, or the reason why it does not."""

    name: str
    kind: Kind
    width: int = 1
    shape: tuple[int | None, ...] = ()
    dtype: str = "uint8"
    """Of pictures: bytes, or numbers that are taken as they are. Of times: `TIME`."""
    why: str = ""


@dataclass(frozen=True)
class Roles:
    """The target and the columns that predict it."""

    target: str | None
    features: tuple[Role, ...]
    ignored: dict[str, str] = field(default_factory=dict)

    def of(self, *kinds: Kind) -> list[Role]:
        """Features of some kinds."""
        return [role for role in self.features if role.kind in kinds]


def find_roles(fields: Sequence[Field], rows: Sequence[Mapping[str, Any]], target: str | None, where: str) -> Roles:
    """Judge all columns; `rows` are the first few samples."""
    others = [f for f in fields if f.name != target]
    found = [judge(f, [row.get(f.name) for row in rows]) for f in others]
    features = tuple(role for role in found if role.kind != "ignored")
    if not features:  # then even a column that numbers the rows is better than none
        features = tuple(_judge_numbers(f) for f, role in zip(others, found, strict=True) if role.why == A_KEY)
        found = [role for role in found if role.why != A_KEY]
    if not features:
        reasons = "; ".join(f"{role.name}: {role.why}" for role in found) or "there is no other column"
        raise InvalidInput(f"{where} has nothing to learn from besides the target: {reasons}.")
    return Roles(target, features, {role.name: role.why for role in found if role.kind == "ignored"})


def choose_target(names: Sequence[str], asked: str | None, where: str, *, pair: bool = False) -> str:
    """The column to learn: the one asked for, the y of a pair, or one with a name that says so."""
    shown = ", ".join(names[:60]) + (", ..." if len(names) > 60 else "")
    if asked is not None:
        if asked not in names and not (pair and "y" in names):
            raise NotFound(f"{where} has no column {asked!r} to learn. The columns are: {shown}.")
        return asked if asked in names else "y"
    if pair:
        return "y"
    likely = [name for name in names if name.lower() in TARGETS]
    if len(likely) == 1:
        return likely[0]
    if likely:
        raise InvalidInput(f"{where}: several columns could be the target ({', '.join(likely)}). Say --target COLUMN.")
    raise InvalidInput(f"{where}: which column is to be learned? Say --target COLUMN. The columns are: {shown}.")


def judge(column: Field, values: Sequence[Any]) -> Role:
    """The kind of one column."""
    if column.dtype == OBJECT:
        return _judge_objects(column, [value for value in values if value is not None])
    if column.dtype.kind in "biufMm":
        if _is_key(column, values):
            return Role(column.name, "ignored", why=A_KEY)
        return _judge_numbers(column)
    return Role(column.name, "ignored", why=f"{column.dtype} is not something a model takes")


def _is_key(column: Field, values: Sequence[Any]) -> bool:
    """Whether whole numbers only tell rows apart: all differ, and the name says so or they count up by one."""
    if column.dtype.kind not in "iu" or column.shape != () or len(values) < KEY_ROWS or len(set(values)) < len(values):
        return False
    named = re.fullmatch(r"(?:.*[_ ])?(?:id|key|pk|index|rowid|uuid|no|nr)|unnamed: 0|", column.name.lower())
    counts_up = values[0] in (0, 1) and all(int(b) - int(a) == 1 for a, b in pairwise(values))
    return bool(named) or counts_up


def _judge_numbers(column: Field) -> Role:
    shape = column.shape
    if shape == ():
        return Role(column.name, "number", dtype=TIME if column.dtype.kind in "Mm" else "uint8")
    if len(shape) == 1 and shape[0]:
        return Role(column.name, "number", width=shape[0], shape=shape)
    if len(shape) in (2, 3) and column.dtype.kind in "uif" and (len(shape) == 2 or shape[2] in (1, 3, 4)):
        return Role(column.name, "image", shape=shape, dtype="uint8" if column.dtype == np.uint8 else "float32")
    return Role(column.name, "ignored", why="its rows have different lengths" if None in shape else "an odd shape")


def _judge_objects(column: Field, values: list[Any]) -> Role:
    if not values:
        return Role(column.name, "ignored", why="the first rows have no value")
    if column.shape == () and all(isinstance(value, (bytes, bytearray, memoryview)) for value in values):
        if all(bytes(value[:4]).startswith(_MAGIC) for value in values):
            return Role(column.name, "image bytes")
        texts = [text for text in map(_decoded, values) if text is not None]
        if len(texts) < len(values):
            return Role(column.name, "ignored", why="bytes that are neither pictures nor text")
        values = texts
    if not all(isinstance(value, str) for value in values):
        if all(isinstance(value, np.ndarray) and value.ndim in (2, 3) for value in values):
            return Role(column.name, "image", shape=(None, None, 3))
        return Role(column.name, "ignored", why="lists or nested values")
    if float(np.mean([len(value.split()) for value in values])) > WORDS:
        return Role(column.name, "text")
    if len(values) >= IDENTIFIER_ROWS and len(set(values)) == len(values):
        return Role(column.name, "ignored", why="every row has a value of its own, like an identifier")
    return Role(column.name, "category")


def _decoded(value: bytes) -> str | None:
    """Text that is stored as bytes; None if it is something else."""
    try:
        text = bytes(value).decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None
