"""What was learned about the columns, kept beside the model so that it can be given raw data.

Covers: the recipe as plain values, prepare.json, the inputs and outputs that a model gets.
Does not cover: learning it (learn.py), applying it (encode.py).
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from penstock.core.errors import InvalidInput, NotFound
from penstock.train.config import write_json
from penstock.train.inspect import ReaderSettings
from penstock.watch.run_folder import OWN_PREPARE, PREPARE, preparation_of

VERSION = 1


@dataclass(frozen=True)
class Numbers:
    """Columns of numbers, side by side: scaled to mean 0 and deviation 1, missing ones 0.

    `flags` are the places of columns that had missing values; each adds a column that says where.
    """

    columns: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flags: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        return len(self.mean) + len(self.flags)


@dataclass(frozen=True)
class Category:
    """A column of names: 0 is unknown, known values count from 1, then come `buckets` for the rare ones by hash."""

    column: str
    values: tuple[str, ...]
    buckets: int = 0

    @property
    def size(self) -> int:
        return 1 + len(self.values) + self.buckets


@dataclass(frozen=True)
class Text:
    """Columns of text as word numbers: 0 is nothing, 1 unknown, words count from 2. Cut and filled to `length`."""

    columns: tuple[str, ...]
    words: tuple[str, ...]
    length: int

    @property
    def size(self) -> int:
        return 2 + len(self.words)


@dataclass(frozen=True)
class Picture:
    """A column of pictures. `encoded`: they come as the bytes of a JPEG or PNG file."""

    column: str
    shape: tuple[int, int, int]
    dtype: str = "uint8"
    encoded: bool = False


@dataclass(frozen=True)
class Target:
    """What is learned: one of `classes`, or a number, scaled. `names` are shown where classes are only numbers."""

    column: str
    task: Literal["classes", "number"]
    classes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    mean: float = 0.0
    std: float = 1.0

    @property
    def outputs(self) -> int:
        """Numbers that the model gives for a row."""
        return len(self.classes) if self.task == "classes" else 1

    @property
    def shown(self) -> tuple[str, ...]:
        """The classes as people know them."""
        return self.names or self.classes


@dataclass(frozen=True)
class InputSpec:
    """One input of the model: shape of a row, dtype, and the size of its vocabulary where it has one."""

    shape: tuple[int, ...]
    dtype: str
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class DataRecipe:
    """All that turns raw rows into what the model takes."""

    reading: ReaderSettings
    target: Target
    numbers: Numbers | None = None
    categories: tuple[Category, ...] = ()
    text: Text | None = None
    picture: Picture | None = None
    ignored: dict[str, str] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)

    def inputs(self) -> dict[str, InputSpec]:
        """The model's inputs by name. A single one is given bare, several as a dict."""
        found: dict[str, InputSpec] = {}
        if self.picture is not None:
            found["image"] = InputSpec(self.picture.shape, self.picture.dtype)
        if self.text is not None:
            found["text"] = InputSpec((self.text.length,), "int32", (self.text.size,))
        if self.numbers is not None:
            found["numbers"] = InputSpec((self.numbers.width,), "float32")
        if self.categories:
            sizes = tuple(category.size for category in self.categories)
            found["categories"] = InputSpec((len(sizes),), "int32", sizes)
        return found

    def columns(self) -> list[str]:
        """The columns that the inputs are made of, by the names under which they come."""
        found = [self.picture.column] if self.picture is not None else []
        found += [*(self.text.columns if self.text else ()), *(self.numbers.columns if self.numbers else ())]
        return [*found, *(category.column for category in self.categories)]

    def __str__(self) -> str:
        parts = []
        if self.picture is not None:
            parts.append(f"pictures of {' x '.join(map(str, self.picture.shape))}")
        if self.text is not None:
            parts.append(f"text of {self.text.length} words ({len(self.text.words):,} known)")
        if self.numbers is not None:
            parts.append(f"{len(self.numbers.mean)} numbers")
        if self.categories:
            parts.append(f"{len(self.categories)} categories")
        goal = f"{len(self.target.classes)} classes" if self.target.task == "classes" else "a number"
        # Pictures in class folders have no column with a name that people know.
        what = "" if self.target.names else f"{self.reading.target}: "
        return f"{', '.join(parts)} -> {what}{goal}"


def write_recipe(folder: Path, recipe: DataRecipe) -> None:
    """Keep the recipe, whole or not at all."""
    _write(folder / PREPARE, recipe)


def keep_recipe(recipe: DataRecipe | None, model_file: Path) -> Path | None:
    """Keep the recipe of one model beside its file; without one, what an earlier model of that name had goes."""
    path = model_file.with_suffix(OWN_PREPARE)
    if recipe is None:
        path.unlink(missing_ok=True)
        return None
    _write(path, recipe)
    return path


def recipe_of_model(model_file: Path) -> DataRecipe:
    """The recipe beside a model: its own, or that of its run folder."""
    path = preparation_of(model_file)
    if not path.exists():
        own = model_file.with_suffix(OWN_PREPARE).name
        raise NotFound(
            f"{model_file} cannot be given raw data: how that becomes its input is written in {own} or {PREPARE} "
            f"beside it, and neither is there. Keep them together: `penstock train` and `penstock shrink` write both."
        )
    return _read(path)


def read_recipe(folder: Path) -> DataRecipe:
    """The recipe of a run folder."""
    path = folder / PREPARE
    if not path.exists():
        raise NotFound(f"{folder} has no {PREPARE}, which says how raw data becomes the model's input.")
    return _read(path)


def _write(path: Path, recipe: DataRecipe) -> None:
    write_json(path, {"version": VERSION, **dataclasses.asdict(recipe)})


def _read(path: Path) -> DataRecipe:
    try:
        values = json.loads(path.read_text())
        if values.pop("version") != VERSION:
            raise InvalidInput(f"{path} was written by another version of penstock.")
        return _from_json(values)
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{path} cannot be read: {error}.") from error


def _from_json(values: dict[str, Any]) -> DataRecipe:
    def made(kind: Any, found: dict[str, Any] | None) -> Any:
        if found is None:
            return None
        return kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in found.items()})

    return DataRecipe(
        reading=made(ReaderSettings, values["reading"]),
        target=made(Target, values["target"]),
        numbers=made(Numbers, values["numbers"]),
        categories=tuple(made(Category, one) for one in values["categories"]),
        text=made(Text, values["text"]),
        picture=made(Picture, values["picture"]),
        ignored=values["ignored"],
        rows=values["rows"],
    )
