"""The drawing of the house is true: every file that it names is there, every room is drawn, and ways are short."""

from __future__ import annotations

import re
from pathlib import Path

import penstock

ROOT = Path(penstock.__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def ways() -> dict[str, list[str]]:
    """The files of each way, by its heading."""
    parts = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    return {part.splitlines()[0]: re.findall(r"^\| \d+ \| `([^`]+)`", part, flags=re.MULTILINE) for part in parts}


def test_every_file_that_is_named_is_there():
    named = re.findall(r"`((?:penstock|native|tests)/[\w/.]+)`", PAGE)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_a_jpeg_passes_through_at_most_15_files():
    found = ways()
    assert len(found) == 3
    jpeg = next(files for title, files in found.items() if "JPEG" in title)
    assert len(jpeg) == len(set(jpeg)) <= 15


def test_every_room_is_drawn():
    drawing = re.search(r"```\n(.*?)```", PAGE, flags=re.DOTALL)
    assert drawing is not None
    rooms = {path.parent.name for path in (ROOT / "penstock").glob("*/__init__.py")}
    assert {room for room in rooms if not re.search(rf"\b{room}/", drawing[1])} <= {"compiled", "distribute"}
