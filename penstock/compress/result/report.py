"""Before and after, as measured.

Covers: the result of shrinking, its table and its JSON.
Does not cover: measuring (probe.py), the plot of a search (frontier.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.compress.child.probe import ModelFacts
from penstock.compress.recipe import Recipe
from penstock.compress.result.frontier import Trial, frontier_rows
from penstock.compress.result.score import Score
from penstock.core.sizes import size

UNKNOWN = "not measured"


@dataclass(frozen=True)
class Shrunk:
    """What came out: the model in memory, its files, and facts that were measured on the files."""

    model: Any
    files: tuple[Path, ...]
    recipe: Recipe
    before: ModelFacts
    after: tuple[ModelFacts, ...]
    notes: tuple[str, ...] = ()
    trials: tuple[Trial, ...] = ()

    def rows(self) -> list[list[str]]:
        """The table: a heading, then a line for every quantity."""
        columns = (self.before, *self.after)
        table = [["", "before", *("after" if len(self.after) == 1 else facts.file for facts in self.after)]]
        table.append(["file", *(facts.file for facts in columns)])
        table.append(["parameters", *(_show(facts.parameters, lambda n: f"{n:,}") for facts in columns)])
        for title, name in (
            ("file size", "file_nbytes"), ("peak memory, inference", "inference_nbytes"),
            ("peak memory, training", "training_nbytes"),
        ):  # fmt: skip
            values = [getattr(facts, name) for facts in columns]
            table.append([title, _show(values[0], size), *(_against(values[0], value) for value in values[1:])])
        latency = [_show(facts.latency_ms, lambda ms: f"{ms:.2f} ms") for facts in columns]
        rows_a_batch = next((facts.batch_rows for facts in columns if facts.batch_rows), None)
        table.append([f"latency, {rows_a_batch} rows, 1 thread" if rows_a_batch else "latency", *latency])
        table.append(["CPU time, as many rows", *(_show(f.cpu_ms, lambda ms: f"{ms:.2f} ms") for f in columns)])
        return table + self._scores(columns)

    def _scores(self, columns: Sequence[ModelFacts]) -> list[list[str]]:
        """A line for the whole, then one for every output of a model that has several."""
        known = next((facts.score for facts in columns if facts.score), None)
        lines = [[f"{known.metric if known else 'accuracy'}, held out", *(_value(facts.score) for facts in columns)]]
        for name in known.parts if known else ():
            cells = [_value(facts.score.parts.get(name) if facts.score else None) for facts in columns]
            lines.append([f"  {known.parts[name].metric} of {name}" if known else name, *cells])
        return lines

    def __str__(self) -> str:
        parts = [f"Recipe: {self.recipe}", markdown(self.rows())]
        if self.trials:
            parts.append(markdown(frontier_rows(self.trials)))
        parts += [f"- {note}" for note in self.notes]
        return "\n\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Everything but the model."""
        return {
            "recipe": asdict(self.recipe), "files": [str(path) for path in self.files], "notes": list(self.notes),
            "before": asdict(self.before), "after": [asdict(facts) for facts in self.after],
            "trials": [asdict(trial) for trial in self.trials],
        }  # fmt: skip


def markdown(table: Sequence[Sequence[str]]) -> str:
    """A table as aligned Markdown, which reads well in a terminal too."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in table
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def _show(value: Any, write: Any) -> str:
    return UNKNOWN if value is None else str(write(value))


def _value(score: Score | None) -> str:
    return UNKNOWN if score is None else f"{score.value:.4f}"


def _against(before: int | None, after: int | None) -> str:
    if after is None:
        return UNKNOWN
    ratio = f" ({before / after:.2f}x less)" if before and after and after < before else ""
    return size(after) + ratio
