"""Everything penstock raises on purpose.

PenstockError
├── InvalidInput       the call itself is wrong: an unknown name, a size that is not a size (also ValueError)
├── DataError          the data cannot be used as asked
│   ├── NotFound       a path, glob, table or column that is not there (also FileNotFoundError)
│   ├── BadData        one piece of data is damaged: names file, place and reason
│   ├── TooManyErrors  more damaged pieces than `max_errors` allows
│   ├── FileChanged    a file is no longer what it was when the dataset first looked at it
│   ├── SchemaChanged  two files of one dataset do not agree
│   ├── DiskTooSmall   a row store does not fit its folder: names the bytes it needs and those that are free
│   └── RaggedBatch    rows of different shapes cannot be one array
├── MapError           the user's function failed: names the sample it failed on
├── TooLarge           one piece needs more than the whole budget, so waiting cannot help
├── OutOfMemory        the training step does not fit and nothing allowed is left to try (also MemoryError)
├── CheckpointError    a checkpoint that is torn, or was written by another model or version
├── PositionError      a position that belongs to another dataset, plan or version
├── MissingExtra       an optional package is needed (also ImportError)
└── Stopped            the stream was closed while a consumer waited

Messages say who, the numbers, and what to change. The values are attributes too.
"""

from __future__ import annotations

LONGEST = 499
_HEAD, _TAIL = 320, 170


class PenstockError(Exception):
    """Root of all errors raised on purpose. A long message loses its middle: names in it may be a user's whole file."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(shortened(arg) if isinstance(arg, str) else arg for arg in args))


def shortened(message: str) -> str:
    """A message of at most `LONGEST` characters: its start says who and what, its end what to change."""
    if len(message) <= LONGEST:
        return message
    return f"{message[:_HEAD]} ... {message[-_TAIL:]}"


class InvalidInput(PenstockError, ValueError):
    """The call cannot be carried out as it is written."""


class DataError(PenstockError):
    """The data cannot be used as asked."""


class NotFound(DataError, FileNotFoundError):
    """A path, glob, table or column that does not exist."""

    def __str__(self) -> str:  # OSError would show only its errno
        return str(self.args[0]) if self.args else ""


class BadData(DataError):
    """One piece of data is damaged. `where` names the file and the row or byte offset."""

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(f"{where}: {reason}")


class TooManyErrors(DataError):
    """More damaged pieces than the skip policy allows."""

    def __init__(self, *, count: int, seen: int, allowed: float, last: BadData) -> None:
        self.count, self.seen, self.allowed, self.last = count, seen, allowed, last
        limit = f"{allowed:.2%} of rows" if 0 < allowed < 1 else f"{allowed:.0f}"
        super().__init__(
            f"{count} damaged pieces skipped in {seen} rows; max_errors allows {limit}. The last one: {last}. "
            f"Mend the data or raise max_errors."
        )


class FileChanged(DataError):
    """A file changed while the dataset was in use. `path` names it, `change` says what is different."""

    def __init__(self, path: str, change: str) -> None:
        self.path, self.change = path, change
        super().__init__(
            f"{path} changed while it was being read: {change}. Rows would be lost or doubled. "
            f"Make the dataset again to read the file as it is now, and write new data under a new name."
        )


class SchemaChanged(DataError):
    """A file disagrees with the columns or types of the first one."""


class DiskTooSmall(DataError):
    """The rows do not fit on the disk, or not below the limit of their folder."""

    def __init__(self, *, who: str, folder: str, needed: int, free: int) -> None:
        from penstock.core.sizes import size  # sizes needs InvalidInput from here

        self.who, self.folder, self.needed, self.free = who, folder, needed, free
        super().__init__(
            f"{who}: the rows need about {size(needed)} in {folder}, and {size(max(0, free))} may be used. Give it "
            f"another folder (PENSTOCK_CACHE, or .cache(folder) before the shuffle), or shuffle by windows: window=."
        )


class RaggedBatch(DataError):
    """Rows of different shapes were asked to become one array."""


class MapError(PenstockError):
    """A user's function raised. The original exception is `__cause__`; `where` names the sample."""

    def __init__(self, function: str, where: str, error: BaseException) -> None:
        self.function, self.where = function, where
        super().__init__(f"{function} failed on {where}: {type(error).__name__}: {error}")


class TooLarge(PenstockError):
    """One piece of data is larger than the whole budget (below 0: overdrawn already), so waiting cannot help."""

    def __init__(self, *, who: str, nbytes: int, limit: int, change: str = "") -> None:
        from penstock.core.sizes import size  # sizes needs InvalidInput from here

        self.who, self.nbytes, self.limit = who, nbytes, limit
        super().__init__(
            f"{who} needs {size(nbytes)}; the data budget is {size(max(0, limit))}. "
            f"{change + ', or raise' if change else 'Raise'} the memory limit by {size(nbytes - limit)}."
        )


class OutOfMemory(PenstockError, MemoryError):
    """A step, evaluation or save does not fit. `phase` and `micro` say where; the message says what would fit."""

    def __init__(self, message: str, *, phase: str, micro: int) -> None:
        self.phase, self.micro = phase, micro
        super().__init__(message)


class CheckpointError(PenstockError):
    """A checkpoint cannot be used: torn, damaged, or of another model."""


class PositionError(PenstockError):
    """A position cannot be resumed here."""


class MissingExtra(PenstockError, ImportError):
    """An optional package is not installed."""

    def __init__(self, *, what: str, extra: str) -> None:
        self.what, self.extra = what, extra
        super().__init__(f"{what} needs packages that are not installed. Run: pip install 'penstock[{extra}]'")


class Stopped(PenstockError):
    """The stream was closed while a consumer waited."""
