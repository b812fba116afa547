"""One exit code for all ranks."""

from __future__ import annotations

import pytest

from penstock.distribute.on_torchrun import command, exit_code


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ([-9, 1, -15], 137),
        ([1, 1], 1),
        ([-15, -15], 143),
        ([3, -15], 3),
        ([-6, 1], 134),
        ([1, -9, -6], 137),
        ([75, 1], 1),
        ([-9, 75], 137),
    ],
)
def test_the_signal_that_killed_a_rank_is_the_exit_code(codes: list[int], code: int) -> None:
    assert exit_code(codes) == code


def test_the_command_names_ranks_and_module() -> None:
    assert command(4, "some.module", "folder")[1:] == [
        "-m",
        "penstock.distribute.on_torchrun",
        "4",
        "some.module",
        "folder",
    ]
