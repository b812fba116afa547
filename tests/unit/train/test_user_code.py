"""Functions out of a user's file get what they name, and their mistakes are told with the line."""

from __future__ import annotations

import pytest

from penstock.core.errors import InvalidInput
from penstock.train.user_code import call_user

CODE = """
def named(folder):
    return folder

def nothing():
    return 7

def wants(colour):
    return colour

def fails(folder):
    rate = folder
    return undefined_name
"""


@pytest.fixture
def code(tmp_path):
    (tmp_path / "mine.py").write_text(CODE)
    return f"{tmp_path}/mine.py"


def test_a_function_gets_what_it_names(code):
    assert call_user(f"{code}:named", {"folder": "runs/x", "other": 1}) == "runs/x"
    assert call_user(f"{code}:nothing", {"folder": "runs/x"}) == 7


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("wants", "asks for colour; it can have folder, or nothing"),
        ("fails", "fails failed in line 13: NameError: name 'undefined_name'"),
        ("absent", "has no function 'absent'"),
    ],
)
def test_mistakes_are_told(code, name, told):
    with pytest.raises(InvalidInput, match=told):
        call_user(f"{code}:{name}", {"folder": "runs/x"})
