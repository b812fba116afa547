"""`read_text`: lines of text files, or whole files.

Covers: checking the call.
Does not cover: reading (sources/text/source.py).
"""

from __future__ import annotations

from typing import Literal

from penstock.core.errors import InvalidInput
from penstock.core.sizes import Size, parse_size
from penstock.core.source import OnError
from penstock.dataset import Dataset
from penstock.sources.storage import files as storage
from penstock.sources.text.lines import LineFiles
from penstock.sources.text.source import DocumentSource, LineSource, check_encoding


def read_text(
    paths: storage.Paths,
    *,
    by: Literal["line", "document"] = "line",
    encoding: str = "utf-8",
    skip_blank: bool = False,
    max_line: Size = "64MB",
    max_document: Size = "256MB",
    on_error: Literal["raise", "skip"] = "raise",
    max_errors: float | None = None,
) -> Dataset:
    """Read text files (plain, gzip, bz2, zstd) as samples `{"text": ...}`: a line each, or a file each.

    Lines come without their line ends; `skip_blank` leaves empty ones out. Plain files are split by byte ranges.
    Documents can be shuffled exactly, for each file is read for itself.

    >>> list(read_text("corpus.txt").take(2))
    [{'text': 'one line'}, {'text': 'another line'}]
    """
    if by not in ("line", "document"):
        raise InvalidInput(f"by must be 'line' or 'document', not {by!r}.")
    name, files, policy = check_encoding(encoding, by), storage.expand(paths), OnError(on_error, max_errors)
    if by == "document":
        return Dataset.of(DocumentSource(files, name, parse_size(max_document), policy))
    return Dataset.of(LineSource(LineFiles(files, parse_size(max_line)), name, skip_blank, policy))
