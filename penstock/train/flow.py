"""From data and recipe to batches: for training, for validation, for predicting.

Covers: learning the recipe in one pass, the streams of a run, counting its steps.
Does not cover: opening (inspect.py), encoding (encode.py), the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.errors import InvalidInput
from penstock.core.source import Source
from penstock.dataset import Dataset
from penstock.order.split import split
from penstock.sources.images.source import ImageSource
from penstock.train.config import Config
from penstock.train.encode import Encoder
from penstock.train.inspect import Inspected, inspect_data, open_reading, source_of
from penstock.train.learn import BlockStatistics, learn, recipe_of
from penstock.train.recipe import DataRecipe
from penstock.train.skipped import skipped
from penstock.train.statistics import Tally, as_text

_LABELS_AT_A_TIME = 65_536
_ENCODED_ROWS = 8192
"""Rows that one job encodes: a whole shuffle window at once would stand in memory twice."""


class Counted:
    """A dataset of batches that knows how many there are, as the pass before has counted them."""

    def __init__(self, ds: Dataset, batches: int) -> None:
        self.ds, self.batches = ds, batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.ds)

    def __len__(self) -> int:
        return self.batches

    def resume(self, position: Any) -> Counted:
        """Go on right after a position."""
        return Counted(self.ds.resume(position), self.batches)


@dataclass(frozen=True)
class Streams:
    """The batches of a run. `plan` describes how they are made, with bytes."""

    train: Counted
    val: Dataset | None
    plan: str
    rows: Dataset

    def example(self, rows: int) -> Any:
        """A small batch as the model gets it, without using up an epoch."""
        return self.rows.batch(rows).peek()


def prepare(config: Config, progress: Callable[[int], None] = lambda rows: None) -> DataRecipe:
    """Look at the data, then read the training rows once and learn what the model's input needs."""
    damaged = _on_error(config)
    looked = inspect_data(
        config.data, query=config.query, target=config.target, image_size=config.image_size, on_error=damaged
    )
    reading = looked.reading
    whole = source_of(open_reading(config.data, reading, query=config.query, on_error=damaged))
    skipped.listen_to(whole)
    if isinstance(whole, ImageSource) and whole.files.labelled and whole.label_function is None:
        return _learn_from_folders(whole, looked, config)
    pictures = {role.name for role in looked.roles.of("image", "image bytes")}
    if pictures and not reading.pair:
        # Pictures teach nothing in this pass: they are not read, or decoded, for it.
        rest = dataclasses.replace(reading, names=tuple(name for name in reading.names if name not in pictures))
        whole = source_of(open_reading(config.data, rest, query=config.query, on_error=damaged))
    return learn(split(whole, config.val, "train", config.seed), looked, task=config.task, progress=progress)


def streams(config: Config, recipe: DataRecipe, ranks: int = 1) -> Streams:
    """The training batches, shuffled anew each epoch, and the validation batches in order.

    Of several ranks each takes its part of the rows, and of each step: `config.batch` is what all of them see.
    """
    whole = source_of(open_reading(config.data, recipe.reading, query=config.query, on_error=_on_error(config)))
    skipped.listen_to(whole)
    train = Dataset.of(split(whole, config.val, "train", config.seed)).shuffle(seed=config.seed)
    val = Dataset.of(split(whole, config.val, "val", config.seed)) if config.val else None
    if not _as_it_is(whole, recipe):
        encoder = Encoder(recipe, target=True)
        train = train.map_batches(encoder, rows=_ENCODED_ROWS, workers="thread")
        val = None if val is None else val.map_batches(encoder, rows=_ENCODED_ROWS, workers="thread")
    rows, mine = recipe.rows["train"], -(-config.batch // ranks)
    batches = train.batch(mine)
    checked = None if val is None or _is_empty(val) else val.batch(mine)
    return Streams(Counted(batches, -(-rows // (mine * ranks))), checked, batches.explain(), train)


def _on_error(config: Config) -> dict[str, Any]:
    """The readers' options for damaged data."""
    return {} if config.on_error == "raise" else {"on_error": config.on_error, "max_errors": config.max_errors}


def raw_batches(data: str, recipe: DataRecipe, *, query: str | None, batch: int) -> Dataset:
    """Batches of inputs for predicting, in the order of the data; the target need not be there."""
    reading = dataclasses.replace(recipe.reading, kind=_kind(data, recipe))
    ds = open_reading(data, reading, query=query, with_target=False)
    _check_columns(ds, data, recipe)
    return ds.map_batches(Encoder(recipe, target=False), rows=_ENCODED_ROWS, workers="thread").batch(batch)


def _kind(data: str, recipe: DataRecipe) -> str:
    """Data to predict may be of another format than the training data, as long as it has the columns."""
    from penstock.read.recognise.formats import kind_of
    from penstock.train.inspect import TABLES

    kind = kind_of(data)
    if recipe.reading.matrix and kind not in TABLES:
        raise InvalidInput(
            f"The model was trained on a table of {len(recipe.reading.names)} columns; {data} is {kind}."
        )
    return kind


def _check_columns(ds: Dataset, data: str, recipe: DataRecipe) -> None:
    """Refuse data that lacks what the model was trained on, before it is read."""
    tree = ds.schema.tree
    there = {field.name for field in ds.schema} if isinstance(tree, dict) else {"x"}
    wanted = [role for role in recipe.columns() if role not in there]
    if wanted:
        has = ", ".join(sorted(there)) if isinstance(tree, dict) else "pictures or arrays without names"
        raise InvalidInput(f"The model was trained on {', '.join(wanted)}, which {data} has not: it has {has}.")


def _learn_from_folders(source: ImageSource, looked: Inspected, config: Config) -> DataRecipe:
    """Pictures in class folders: labels are known from the listing, without opening a file."""
    side = split(source, config.val, "train", config.seed)
    total = side.num_rows() or 0
    tally = Tally(most=1 << 30)
    for first in range(0, len(source.files), _LABELS_AT_A_TIME):
        rows = np.arange(first, min(first + _LABELS_AT_A_TIME, len(source.files)))
        tally.merge(Tally.of(as_text(source.files.labels(rows))))
    if len(tally.counts) < 2:
        raise InvalidInput(f"{config.data} has only one class folder with pictures; training needs at least two.")
    part = BlockStatistics(rows=total, target=tally)
    part.target_spread = None
    recipe = recipe_of(looked, part, "classes", {"train": total, "without_target": 0})
    classes = tuple(sorted(recipe.target.classes, key=float))
    names = tuple(source.classes) if len(source.classes) == len(classes) else ()
    return dataclasses.replace(recipe, target=dataclasses.replace(recipe.target, classes=classes, names=names))


def _as_it_is(source: Source, recipe: DataRecipe) -> bool:
    """Whether the source gives batches as the model wants them, decoded straight into place."""
    numbered = recipe.target.classes == tuple(str(n) for n in range(len(recipe.target.classes)))
    return isinstance(source, ImageSource) and numbered


def _is_empty(ds: Dataset) -> bool:
    with iter(ds.shard(0, 1)) as rows:  # of the whole: a rank may have none
        return next(rows, None) is None
