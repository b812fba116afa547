"""What to do to a model, written down and checked before anything runs.

Covers: the ways and their options, and the target of a search.
Does not cover: carrying them out (run.py, search.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from penstock.core.errors import InvalidInput


class Ways(TypedDict, total=False):
    """The options of `shrink`, as keywords."""

    width: float
    prune: float
    structured: bool
    n_m: tuple[int, int] | None
    quantize: str | None
    quantize_aware: bool
    distill: bool
    temperature: float
    alpha: float
    teacher: str | None
    epochs: int
    learning_rate: float


@dataclass(frozen=True)
class Recipe:
    """Width, then channels, then training (with a teacher, with pruning), then quantization: in that order.

    `width` and `prune` are 1 and 0 for "leave it". `structured` removes channels instead of zeroing weights.
    `quantize_aware` trains once more with quantized weights. `teacher` names the mode in which the teacher is heard.
    """

    width: float = 1.0
    prune: float = 0.0
    structured: bool = False
    n_m: tuple[int, int] | None = None
    quantize: str | None = None
    quantize_aware: bool = False
    distill: bool = False
    temperature: float = 2.0
    alpha: float = 0.5
    teacher: str | None = None
    epochs: int = 1
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        if not 0 < self.width <= 1:
            raise InvalidInput(f"width must be above 0 and at most 1, not {self.width}.")
        if not 0 <= self.prune < 1:
            raise InvalidInput(f"prune must be at least 0 and below 1, not {self.prune}.")
        if self.structured and not self.prune:
            raise InvalidInput("structured removes channels, so it needs prune, the fraction of them to remove.")
        if self.structured and self.n_m:
            raise InvalidInput("structured removes channels and n_m zeroes single weights; choose one of them.")
        if self.quantize_aware and not self.quantize:
            raise InvalidInput("quantize_aware trains with quantized weights, so it needs quantize, the mode.")
        if self.teacher and not self.distill:
            raise InvalidInput("teacher quantizes the teacher, so it needs distill.")

    @property
    def trains(self) -> bool:
        """Whether weights must be trained afterwards."""
        return self.width < 1 or self.prune > 0 or self.n_m is not None or self.distill

    def __str__(self) -> str:
        words = [f"width {self.width:g}"] if self.width < 1 else []
        if self.n_m:
            words.append(f"{self.n_m[0]}:{self.n_m[1]} sparsity")
        elif self.prune:
            words.append(f"{'channels' if self.structured else 'weights'} -{self.prune:.0%}")
        words += ["distilled"] if self.distill else []
        words += [self.quantize + (" aware" if self.quantize_aware else "")] if self.quantize else []
        return ", ".join(words) or "as it is"


@dataclass(frozen=True)
class SizeTarget:
    """A size that the file (`to`) or inference (`peak`) must not exceed, in bytes."""

    to: int | None = None
    peak: int | None = None
    time_limit_s: float = 900.0

    def __bool__(self) -> bool:
        return self.to is not None or self.peak is not None
