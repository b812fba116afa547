"""What was measured, as plain values.

Covers: runs of the pipeline, the machine's limits, trials, and all of them together.
Does not cover: measuring (measure.py, limits.py), what follows from them (verdict.py).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Flow:
    """One run of a pipeline, counted from its first batch on."""

    rows: int
    wall_s: float
    waited_s: float = 0.0
    """How long the consumer stood still."""
    cpu_s: float = 0.0

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def waited(self) -> float:
        """Share of the time in which the consumer waited."""
        return min(1.0, self.waited_s / self.wall_s) if self.wall_s > 0 else 0.0

    @property
    def waited_us(self) -> float:
        """Microseconds of waiting for each row."""
        return self.waited_s / self.rows * 1e6 if self.rows else 0.0

    @property
    def cpu_us(self) -> float:
        """Microseconds of processor time for each row."""
        return self.cpu_s / self.rows * 1e6 if self.rows else 0.0


@dataclass(frozen=True)
class Limits:
    """What this machine can do at most. Rates in bytes a second; None where it could not be measured."""

    cores: int
    memcpy: float
    read_cold: float | None
    """These very files, read from storage by several threads at once."""
    read_warm: float | None
    """The same from the page cache."""
    memory_nbytes: int
    """The memory limit of this process."""


@dataclass(frozen=True)
class SampleTrial:
    """A change that was tried on the sample."""

    name: str
    warm: float | None
    """Rows a second with the change, without a consumer; None if it was not tried."""
    before: float
    """Rows a second of the same sample without the change."""
    cold: float | None = None
    """Rows a second with the change when files are not in memory."""
    before_cold: float | None = None
    needs_nbytes: int | None = None
    """Disk or memory for the whole dataset."""
    fits: bool = True
    note: str = ""

    @property
    def gain(self) -> float | None:
        """How many times faster, files in memory."""
        return None if self.warm is None or self.before <= 0 else self.warm / self.before

    @property
    def gain_cold(self) -> float | None:
        """How many times faster, files on storage."""
        return self.cold / self.before_cold if self.cold is not None and self.before_cold else None


@dataclass(frozen=True)
class MeasuredSample:
    """The part of the dataset that was measured."""

    source: str
    kind: str
    rows: int | None
    """Of the whole dataset; None where only reading tells."""
    nbytes: int | None
    """Stored bytes of the whole dataset."""
    row_stored: float | None
    """Stored bytes of one row."""
    row_nbytes: float
    """Bytes of one row in a batch."""
    sample_rows: int
    batch: int
    step_s: float
    """How long the simulated consumer works on a batch."""
    function: str = ""
    """The user's function, by name."""


@dataclass(frozen=True)
class Facts:
    """Everything that a verdict rests on."""

    sample: MeasuredSample
    limits: Limits
    synthetic: Flow
    """The consumer alone, on a batch that is already there."""
    cached: Flow
    """The pipeline and the consumer, files in the page cache."""
    cold: Flow | None
    """The same, files not in memory; None where the page cache could not be emptied."""
    free: Flow
    """The pipeline without a consumer, files in the page cache."""
    free_cold: Flow | None
    """The same, files not in memory."""
    decode: float
    """Rows a second that all cores decode or parse, bytes at hand, nothing else running."""
    function: float | None = None
    """Rows a second that the user's function allows by itself."""
    trials: tuple[SampleTrial, ...] = ()
    notes: tuple[str, ...] = ()
