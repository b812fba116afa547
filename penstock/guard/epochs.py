"""A dataset's batches, epoch by epoch, from any place on.

Covers: walking a dataset or any iterable of batches, telling the place, and starting again from it.
Does not cover: what a position means (order/position.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from penstock.core.errors import InvalidInput
from penstock.core.events import events

Place = dict[str, Any]
"""JSON: {"position", "batches", "ended"}: where an iterator stands."""


def refuse_arrays(ds: Any, name: str) -> None:
    """Say so if the whole data is given where batches are expected: its rows would be taken for batches."""
    first = ds[0] if isinstance(ds, tuple) and ds else ds
    if hasattr(first, "shape") and hasattr(first, "dtype"):
        raise InvalidInput(
            f"{name} is arrays, not a stream of batches. Use penstock.from_tensor_slices((x, y)).batch(32), or a list "
            f"of batches."
        )


class Epochs:
    """Hands out one epoch after the other. With `steps` an epoch is so many batches, wherever the data ends."""

    def __init__(self, ds: Iterable[Any], *, steps: int | None = None) -> None:
        if steps is not None and steps < 1:
            raise InvalidInput(f"steps_per_epoch must be at least 1, not {steps}.")
        self._ds, self._steps = ds, steps
        self._iterator: Iterator[Any] | None = None
        self._batches, self._ended = 0, False
        self._once = iter(ds) is ds if isinstance(ds, Iterator) else False

    def resume(self, place: Place) -> None:
        """Go on where `place` was taken: without reading again if the dataset can, else by skipping batches."""
        self._batches, self._ended = place["batches"], place["ended"]
        if place["position"] is not None and hasattr(self._ds, "resume"):
            self._ds = self._ds.resume(place["position"])
            self._iterator = iter(self._ds)
            # At the end of an epoch what is left of its iteration is nothing; it has to be taken all the same.
            if self._ended and next(self._iterator, None) is not None:
                raise InvalidInput("The place is the end of an epoch, but the dataset has more. It has changed.")
        elif not self._ended:
            self._iterator = iter(self._ds)
            events.emit("guard.skipping", type(self._ds).__name__, batches=self._batches)
            for _ in range(self._batches):
                next(self._iterator, None)

    @property
    def place(self) -> Place:
        """Where we stand, after the last batch handed out."""
        position = getattr(self._iterator, "position", None)
        return {"position": position, "batches": self._batches, "ended": self._ended}

    def epoch(self, done: int = 0) -> Iterator[Any]:
        """The batches of the next epoch, or of the rest of one of which `done` batches were taken before."""
        count = done
        if self._ended:
            self._iterator = None
        while self._steps is None or count < self._steps:
            if self._iterator is None:
                self._open()
            assert self._iterator is not None
            try:
                batch = next(self._iterator)
            except StopIteration:
                self._ended = True
                if self._steps is None:
                    return
                if not self._batches:
                    raise InvalidInput("The dataset has no batches.") from None
                self._iterator = None
                continue
            self._batches += 1
            count += 1
            yield batch

    def _open(self) -> None:
        if self._once and self._batches:
            raise InvalidInput("The data is an iterator, which can be read once. Give steps_per_epoch, or a dataset.")
        self._iterator = iter(self._ds)
        self._batches, self._ended = 0, False
