"""What a forecast says.

Covers: `Forecast`: peaks for any batch, the largest batch that fits, the micro-batch for a batch, all as JSON too.
Does not cover: measuring (child.py), how it is shown (table.py).

The peak of a step of `batch` rows in parts of `micro` rows is the highest of four moments: gradients of a part, the
optimizer step, an evaluation in parts of the same size, a save. The whole batch's own bytes are held in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from penstock.core.errors import InvalidInput
from penstock.core.sizes import Size, parse_size
from penstock.guard.forecast.curve import MOST_ROWS, Curve
from penstock.guard.recovery.ladder import MARGIN, Line
from penstock.guard.recovery.microbatch import part_sizes
from penstock.memory.limits import Limit


@dataclass(frozen=True, slots=True)
class Setting:
    """How the model computes."""

    precision: str = "float32"
    remat: bool = False

    def __str__(self) -> str:
        return self.precision + (" + remat" if self.remat else "")


@dataclass(frozen=True, slots=True)
class Costs:
    """The process's peaks in one setting, the batch's own bytes left out."""

    setting: Setting
    whole: Curve
    """Gradients of a batch in one part."""
    split: Curve
    """Gradients of a part when there are several: the sums are held beside it."""
    evaluate: Curve
    apply_nbytes: float
    save_nbytes: float
    probed_rows: int
    """The largest size that really ran; beyond it the line is drawn out."""
    source: str = "probes"

    def peak(self, part: int, *, split: bool) -> float:
        """The highest moment of a run whose largest part has so many rows."""
        step = self.split if split else self.whole
        return max(step.at(part), self.evaluate.at(part), self.apply_nbytes, self.save_nbytes)


@dataclass(frozen=True, slots=True)
class Parts:
    """Where the bytes are, in the first setting. `base` is all else: interpreter, libraries, compiled programs."""

    parameters: int
    gradients: int
    optimizer: int
    copies: int
    """Kept by the guard so that a failed optimizer step can be put back."""
    base: int
    per_sample: int
    """Activations: what one more row of a part takes."""
    row: int
    """One row of the batch itself."""
    evaluation: int
    """Peak of an evaluation with the whole batch."""
    save: int
    """Peak while a checkpoint is written."""


@dataclass(frozen=True)
class Forecast:
    """Will it fit, and what would make it fit. `print` it for the table; made by `forecast`."""

    who: str
    framework: str
    batch: int
    limit: Limit
    parts: Parts
    costs: tuple[Costs, ...]
    error: float
    """The worst miss that was measured on the test models with this framework, as a share of the peak."""
    device_nbytes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the whole batch fits in the first setting, with a small margin for what allocators round up."""
        return self.peak() <= self.limit.nbytes * MARGIN

    @property
    def settings(self) -> tuple[Setting, ...]:
        """What was compared, the model's own setting first."""
        return tuple(costs.setting for costs in self.costs)

    def peak(
        self,
        batch: int | None = None,
        *,
        precision: str | None = None,
        remat: bool | None = None,
        micro: int | None = None,
    ) -> int:
        """Bytes of the process at its highest, for a batch taken whole or in parts of at most `micro` rows."""
        rows = self.batch if batch is None else batch
        if rows < 1:
            raise InvalidInput(f"A batch needs at least one row, not {rows}.")
        part = rows if micro is None else max(part_sizes(rows, micro))
        costs = self.costs_of(precision, remat)
        return int(costs.peak(part, split=part < rows) + rows * self.parts.row)

    def largest_batch(
        self, *, precision: str | None = None, remat: bool | None = None, limit: Size | None = None
    ) -> int:
        """The most rows that fit as one part; 0 if not even one does."""
        room = self._room(limit)
        return _most(lambda rows: self.peak(rows, precision=precision, remat=remat) <= room, MOST_ROWS)

    def micro_batch(
        self,
        batch: int | None = None,
        limit: Size | None = None,
        *,
        precision: str | None = None,
        remat: bool | None = None,
    ) -> int:
        """The largest part in which this batch fits: the batch itself if it does, 0 if no part does."""
        rows, room = self.batch if batch is None else batch, self._room(limit)
        if self.peak(rows, precision=precision, remat=remat) <= room:
            return rows
        found = _most(lambda micro: self.peak(rows, precision=precision, remat=remat, micro=micro) <= room, rows - 1)
        return max(part_sizes(rows, found)) if found else 0

    def largest_on_device(self, *, precision: str | None = None, remat: bool | None = None) -> int:
        """The most rows whose tensors fit in `device_nbytes`. Not measured on a device: its libraries come on top."""
        if self.device_nbytes is None:
            raise InvalidInput("No device memory was given. Pass ForecastOptions(device_memory='8GB').")
        room = self.device_nbytes * MARGIN + self.parts.base
        return _most(lambda rows: self.peak(rows, precision=precision, remat=remat) <= room, MOST_ROWS)

    def line(self, *, precision: str | None = None, remat: bool | None = None) -> Line:
        """The forecast as recovery uses it: bytes over the rows of a part, the whole batch's own bytes in its base."""
        line = self.costs_of(precision, remat).split.line()
        return Line(line.base + self.batch * self.parts.row, line.per_sample)

    def costs_of(self, precision: str | None = None, remat: bool | None = None) -> Costs:
        """The peaks of one setting; what is not named is as in the first."""
        first = self.costs[0].setting
        wanted = Setting(precision or first.precision, first.remat if remat is None else remat)
        for costs in self.costs:
            if costs.setting == wanted:
                return costs
        known = ", ".join(str(setting) for setting in self.settings)
        raise InvalidInput(f"{wanted} was not forecast; known are {known}.")

    def table(self) -> str:
        """The forecast for people."""
        from penstock.guard.forecast.table import render  # it shows this class

        return render(self)

    def __str__(self) -> str:
        return self.table()

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON-able values, with the answers to the usual questions."""
        answers = {"fits": self.fits, "peak_nbytes": self.peak(), "micro_batch": self.micro_batch()}
        rows = [
            {
                "precision": setting.precision,
                "remat": setting.remat,
                "peak_nbytes": self.peak(precision=setting.precision, remat=setting.remat),
                "largest_batch": self.largest_batch(precision=setting.precision, remat=setting.remat),
                "micro_batch": self.micro_batch(precision=setting.precision, remat=setting.remat),
            }
            for setting in self.settings
        ]
        values = asdict(self)
        values["limit"] = {"nbytes": self.limit.nbytes, "reason": self.limit.reason}
        values["notes"] = list(self.notes)
        return {**values, **answers, "settings": rows}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Forecast:
        """The inverse of `as_dict`, also after a journey through JSON."""
        return cls(
            who=values["who"],
            framework=values["framework"],
            batch=values["batch"],
            limit=Limit(**values["limit"]),
            parts=Parts(**values["parts"]),
            costs=tuple(_costs_from(costs) for costs in values["costs"]),
            error=values["error"],
            device_nbytes=values["device_nbytes"],
            notes=tuple(values["notes"]),
        )

    def _room(self, limit: Size | None) -> float:
        return (self.limit.nbytes if limit is None else parse_size(limit)) * MARGIN


def _costs_from(values: Mapping[str, Any]) -> Costs:
    curves = {name: Curve(tuple((r, b) for r, b in values[name]["points"])) for name in ("whole", "split", "evaluate")}
    return Costs(**{**values, **curves, "setting": Setting(**values["setting"])})


def _most(fits: Callable[[int], bool], top: int) -> int:
    """The largest number up to `top` that fits, where all smaller ones do; 0 if 1 does not."""
    if top < 1 or not fits(1):
        return 0
    low, high = 1, 2
    while high <= top and fits(high):
        low, high = high, high * 2
    high = min(high, top + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
