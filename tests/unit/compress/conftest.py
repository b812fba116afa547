"""Small models on one thread: on a busy machine, threads that wait for each other take 50 times as long."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    if importlib.util.find_spec("torch") is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
