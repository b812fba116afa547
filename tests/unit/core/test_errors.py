"""Messages stay short, whatever the data."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import penstock as ps
from penstock.core import errors
from penstock.core.errors import BadData, MapError, MissingExtra, NotFound, PenstockError, TooManyErrors

LONG = "x" * 400_000


def kinds() -> list[type[PenstockError]]:
    found = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, PenstockError)]
    return [kind for kind in found if kind.__init__ is PenstockError.__init__]


@pytest.mark.parametrize("kind", kinds())
def test_every_error_keeps_head_and_tail(kind: type[PenstockError]) -> None:
    text = str(kind(f"Column {LONG} is missing. Name another one."))
    assert len(text) < 500 and text.startswith("Column x") and text.endswith("Name another one.")
    assert str(kind("short")) == "short"


def test_errors_made_of_parts() -> None:
    bad = BadData(LONG, LONG)
    assert bad.where == LONG
    for error in (
        bad,
        MapError(LONG, LONG, ValueError(LONG)),
        MissingExtra(what=LONG, extra="x"),
        TooManyErrors(count=1, seen=1, allowed=0, last=bad),
        NotFound(LONG),
    ):
        assert 0 < len(str(error)) < 500


def test_a_header_of_400_kb_is_told_in_few_words(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(",".join(f"column{i}" for i in range(30_000)) + "\n")
    with pytest.raises(PenstockError) as caught:
        list(ps.read_csv(path, label="y"))
    assert len(str(caught.value)) < 500
