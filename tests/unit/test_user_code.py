from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.errors import InvalidInput, NotFound
from penstock.core.user.code import load_function


@pytest.fixture(autouse=True)
def same_path() -> Iterator[None]:
    before = list(sys.path)
    yield
    sys.path[:] = before


def test_neighbours_can_be_imported_at_once_and_later(tmp_path: Path) -> None:
    (tmp_path / "neighbour_now.py").write_text("number = 4")
    (tmp_path / "neighbour_later.py").write_text("number = 3")
    (tmp_path / "mine.py").write_text(
        "import neighbour_now\ndef build():\n    import neighbour_later\n"
        "    return neighbour_now.number + neighbour_later.number\n"
    )
    first = sys.path[0]
    assert load_function(f"{tmp_path}/mine.py:build")() == 7
    assert sys.path[0] == first  # nothing of the user's folder hides a module that others import


def test_files_of_one_name_are_modules_of_their_own(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "net.py").write_text(
            f"class Net:\n    here = {folder!r}\ndef build():\n    return Net()\n"
        )
    a, b = (load_function(f"{tmp_path}/{folder}/net.py:build")() for folder in ("a", "b"))
    assert (pickle.loads(pickle.dumps(a)).here, pickle.loads(pickle.dumps(b)).here) == ("a", "b")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import os\nx = 1 / 0\n", "line 2, cannot be run: ZeroDivisionError"),
        ("import os\n\ndef build(:\n", "line 3, cannot be run: SyntaxError"),
        ("import no_such_package_here\n", "line 1, cannot be run: ModuleNotFoundError"),
        ("build = 3\n", "has no function 'build'"),
    ],
)
def test_a_file_that_cannot_be_used_says_where_and_why(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(InvalidInput, match=said):
        load_function(f"{tmp_path}/mine.py:build")
    with pytest.raises(NotFound, match="There is no Python file"):
        load_function(f"{tmp_path}/none.py:build")
