"""A Keras model on several ranks, which together train as one process with all their rows would.

Covers: the same weights at the start, metrics and statistics of all ranks, one place in the data for all of them.
Does not cover: gradients (each backend adds them up when it applies them), votes (guard/ranks/).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from penstock.guard.epochs import Place
from penstock.guard.ranks.agree import Ranks


class Together:
    """What the ranks of one `fit` share. With one rank nothing happens.

    `spread` is a model that all ranks have together, and not a copy each: its variables are theirs in common.
    """

    def __init__(self, model: keras.Model, ranks: Ranks, *, spread: bool = False) -> None:
        self._model, self._ranks = model, ranks
        self.apart = ranks.size > 1 and not spread

    @property
    def alone(self) -> bool:
        return self._ranks.size == 1

    def begin(self) -> None:
        """Start from rank 0's weights: seeds may differ, and two models that differ never meet."""
        optimizer = getattr(self._model, "optimizer", None)
        variables = [*self._model.variables, *([] if optimizer is None else optimizer.variables)]
        self._replace([v for v in variables if _is_float(v)], self._ranks.from_first)

    def merge_statistics(self) -> None:
        """Moving averages, such as those of batch normalisation, become the mean over ranks."""
        moving = [v for v in self._model.non_trainable_variables if _is_float(v)]
        self._replace(moving, lambda values: self._ranks.add(values, 1.0 / self._ranks.size))

    def merge_metrics(self) -> None:
        """Metrics become those of all rows. They keep sums and counts, which add up."""
        self._replace(self._sums(), lambda values: self._ranks.add(values, 1.0))

    @contextmanager
    def as_saved(self) -> Iterator[None]:
        """Inside the block, rank 0's model is what all ranks have reached; after it, each counts on by itself."""
        if not self.apart:
            yield
            return
        self.merge_statistics()
        mine = [_own(variable.value) for variable in self._sums()]
        self.merge_metrics()
        yield
        for variable, value in zip(self._sums(), mine, strict=True):
            variable.assign(value)

    def _sums(self) -> list[Any]:
        return [variable for metric in self._model.metrics for variable in metric.variables]

    def spec(self, mine: Any) -> Any:
        """The batch's shapes of any rank that has one: a rank may have no rows."""
        return mine if self.alone else next((spec for spec in self._ranks.gather(mine) if spec is not None), None)

    def smallest(self, mine: int | None) -> int | None:
        """The smallest number that any rank was given: one of them may have had a forecast made."""
        if self.alone:
            return mine
        return min((value for value in self._ranks.gather(mine) if value is not None), default=None)

    def place(self, mine: Place) -> Place:
        """The place to save: of all ranks, where there are several."""
        return mine if self.alone else {"ranks": self._ranks.gather(mine)}

    def place_of(self, saved: Place) -> Place:
        """This rank's place in what was saved, by as many ranks or by others.

        The epoch is over when all ranks are through with it; until then a rank that is has nothing left to read.
        """
        places: list[Place] = saved.get("ranks", [saved])
        if self.alone and len(places) == 1:
            return places[0]
        over = all(place["ended"] for place in places)
        if len(places) == self._ranks.size:
            return {**places[self._ranks.rank], "ended": over}
        most = max(place["batches"] for place in places)
        return {"position": [place["position"] for place in places], "batches": most, "ended": over}

    def _replace(self, variables: list[Any], combine: Any) -> None:
        if not self.apart or not variables:
            return
        values = [_own(variable.value) for variable in variables]
        for variable, value in zip(variables, combine(values), strict=True):
            variable.assign(value)


def _is_float(variable: Any) -> bool:
    return "float" in str(variable.dtype)


def _own(value: Any) -> Any:
    """A copy that may be written to: torch adds up in place."""
    return value.detach().clone() if hasattr(value, "detach") else value
