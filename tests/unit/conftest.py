"""Unit tests wait for nothing and reach nobody: sleeping and connecting to other machines raise.

A test of real time is marked `real_time`. What a test calls may sleep, and so may threads and child processes.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

HERE = str(Path(__file__).parent)
_sleep, _connect = time.sleep, socket.socket.connect


@pytest.fixture(autouse=True)
def _no_waiting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        in_test = sys._getframe(1).f_code.co_filename.startswith(HERE)  # the standard library may wait for a process
        if in_test and threading.current_thread() is threading.main_thread():
            raise AssertionError("a unit test sleeps: wait for an event, or mark it real_time")
        _sleep(seconds)

    if request.node.get_closest_marker("real_time") is None:
        monkeypatch.setattr(time, "sleep", sleep)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a unit test connects to {address[0]}")
        _connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)
